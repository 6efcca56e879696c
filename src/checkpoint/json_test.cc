#include "checkpoint/json.h"

#include <gtest/gtest.h>

namespace quire::checkpoint {
namespace {

std::string problem(std::string_view text, const JsonLimits& limits = {}) {
  const auto document = JsonDocument::parse(text, "f.json", limits);
  return document.ok() ? "" : document.error().message;
}

TEST(Json, RefusesWhatIsNotOneBoundedObject) {
  EXPECT_EQ(problem(R"({"a": [1, {"b": null}], "c": "x"})"), "");
  EXPECT_NE(problem("[1]").find("must hold a JSON object"), std::string::npos);
  EXPECT_NE(problem("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a": 1} x)").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a": 1, "b": 2, "a": 3})").find("\"a\" stands twice"), std::string::npos);
  EXPECT_NE(problem("{\"a\": \"\xff\"}").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a": 1e999})").find("not valid JSON"), std::string::npos);
  EXPECT_NE(problem(R"({"a": 1})", {.bytes = 7}).find("over the limit"), std::string::npos);
  EXPECT_NE(problem(R"({"a": [1, 2, 3]})", {.nodes = 4}).find("more than 4 values"), std::string::npos);
  EXPECT_EQ(problem(R"({"a": [1, 2, 3]})", {.nodes = 5}), "");
}

TEST(Json, EveryCutIsRefused) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9", {"b": null}], "c": true})";
  ASSERT_EQ(problem(text), "");
  for (std::size_t size = 0; size < text.size(); ++size) EXPECT_NE(problem(text.substr(0, size)), "") << size;
}

TEST(Json, DeepNestingIsRefusedNotRecursedInto) {
  for (const std::string_view open : {"[", "{\"a\":"}) {
    std::string text = "{\"x\":";
    for (int i = 0; i < 1000000; ++i) text += open;
    EXPECT_NE(problem(text).find("nested deeper than 64"), std::string::npos);
  }
  EXPECT_NE(problem(R"({"a": {"b": {}}})", {.depth = 2}).find("nested deeper than 2"), std::string::npos);
  EXPECT_EQ(problem(R"({"a": {"b": {}}})", {.depth = 3}), "");
}

TEST(Json, AccessorsNameFileKeyAndValue) {
  const auto document = JsonDocument::parse(
      R"({"n": 5, "f": 4.0, "h": 0.5, "s": "x", "z": null, "o": {"k": -1}, "l": [1, 2], "m": ["a", 3], "big": 18446744073709551615})",
      "f.json");
  ASSERT_TRUE(document.ok());
  const JsonView root = document->root();
  EXPECT_EQ(*root.integer("n", 0, 5), 5);
  EXPECT_EQ(*root.integer("f", 0, 5), 4);
  EXPECT_EQ(root.integer("n", 6, 9).error().message,
            "f.json: n is 5, but must be a whole number from 6 to 9");
  EXPECT_EQ(root.integer("s", 0, 9).error().message, "f.json: s must be a whole number, found string");
  EXPECT_EQ(root.integer("q", 0, 9).error().message, "f.json: the key q is missing");
  EXPECT_FALSE(root.integer("h", 0, 9).ok());
  EXPECT_FALSE(root.integer("big", 0, INT64_MAX).ok());
  EXPECT_EQ(*root.integer_or("z", 7, 0, 9), 7);
  EXPECT_TRUE(root.is_null("z"));
  EXPECT_FALSE(root.has("z"));
  EXPECT_FALSE(root.is_null("absent"));
  EXPECT_EQ(*root.number("h", 0, 1), 0.5);
  EXPECT_FALSE(root.number("h", 0.6, 1).ok());
  EXPECT_FALSE(root.boolean_or("n", true).ok());
  EXPECT_EQ(*root.string_or("q", "d"), "d");
  const auto object = root.object("o");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->integer("k", 0, 1).error().message,
            "f.json: o: k is -1, but must be a whole number from 0 to 1");
  EXPECT_EQ(root.integers("l", 2)->size(), 2u);
  EXPECT_EQ(root.integers("n", 2)->at(0), 5);
  EXPECT_FALSE(root.integers("l", 1).ok());
  EXPECT_FALSE(root.strings("m", 9).ok());
  EXPECT_FALSE(root.objects("l", 9).ok());
}

}  // namespace
}  // namespace quire::checkpoint
