#include "base/quantile.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Quantile, LiesBetweenNeighbours) {
  const std::vector<double> values = {1.0, 2.0, 4.0, 8.0};
  EXPECT_EQ(quantile(values, 0.0), 1.0);
  EXPECT_EQ(quantile(values, 0.5), 3.0);
  EXPECT_EQ(quantile(values, 0.75), 5.0);
  EXPECT_EQ(quantile(values, 1.0), 8.0);
  EXPECT_EQ(quantile({}, 0.5), 0.0);
}

TEST(Quantile, TheMedianSorts) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_EQ(median({}), 0.0);
}

}  // namespace
}  // namespace quire
