// Grammars over a real vocabulary: what they let through, what they refuse, what compiling them costs at
// most.
#include "grammar/grammar.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <random>

#include "grammar/schema.h"
#include "grammar/testing.h"

namespace xgrammar {
std::int64_t WorkLeft();  // of this thread (grammar.cc)
}

namespace quire::grammar {
namespace {

const tokenizer::Tokenizer& bytes() {
  static const tokenizer::Tokenizer made = [] {
    Result<tokenizer::Tokenizer> tokenizer =
        tokenizer::Tokenizer::from_json(testing::byte_tokenizer({"<end>", "<mark>"}));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    return std::move(tokenizer).value();
  }();
  return made;
}

constexpr std::int32_t kEnd = 256;

std::unique_ptr<Compiler> compiler(std::span<const std::string_view> markers = {}) {
  Result<std::unique_ptr<Compiler>> made =
      Compiler::create(bytes(), std::vector<std::int32_t>{kEnd}, markers);
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made).value();
}

std::vector<std::int32_t> allowed(Guide& guide) {
  std::vector<std::uint32_t> words(11, ~0u);  // more than the vocabulary has
  std::vector<std::int32_t> ids;
  if (!guide.mask(words)) return {-1};
  for (std::int32_t id = 0; id < 352; ++id) {
    if (words[static_cast<std::size_t>(id / 32)] >> id % 32 & 1u) ids.push_back(id);
  }
  return ids;
}

// The last word of the mask may have any number of entries.
TEST(Grammar, NoBitBehindTheVocabularyIsSet) {
  for (const int special : {1, 30, 31, 32}) {
    std::vector<std::string> names;
    for (int i = 0; i < special; ++i) names.push_back("<" + std::to_string(i) + ">");
    const auto tokenizer = tokenizer::Tokenizer::from_json(testing::byte_tokenizer(names));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const auto made = Compiler::create(*tokenizer, std::vector<std::int32_t>{kEnd}, {});
    ASSERT_TRUE(made.ok()) << made.error().message;
    const auto maker = (*made)->ebnf(R"(root ::= "a" | "b")");
    ASSERT_TRUE(maker.ok()) << maker.error().message;
    const std::shared_ptr<Guide> guide = (*maker)->make();
    EXPECT_EQ(allowed(*guide), (std::vector<std::int32_t>{'a', 'b'})) << special;
  }
}

// How the grammar takes a text: its first bytes that it refuses, or what it says at the end.
std::string taken(const GuideMaker& maker, const std::string& text) {
  const std::shared_ptr<Guide> guide = maker.make();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (guide->ended()) return "ended at " + std::to_string(i);
    const auto byte = static_cast<std::int32_t>(static_cast<unsigned char>(text[i]));
    const std::vector<std::int32_t> may = allowed(*guide);
    if (std::find(may.begin(), may.end(), byte) == may.end()) return "refused at " + std::to_string(i);
    guide->accept(byte);
  }
  if (guide->ended()) return "ended";
  const std::vector<std::int32_t> may = allowed(*guide);
  return std::find(may.begin(), may.end(), kEnd) != may.end() ? "may end" : "goes on";
}

TEST(Grammar, ASchemaLetsThroughWhatItAccepts) {
  const std::unique_ptr<Compiler> made = compiler();
  const auto maker = made->json_schema(R"({"type":"object","properties":{"n":{"type":"integer","minimum":1},
      "s":{"type":"string","maxLength":3},"l":{"type":"array","items":{"enum":["a",true,null]},"maxItems":2}},
      "required":["n","s"]})");
  ASSERT_TRUE(maker.ok()) << maker.error().message;
  EXPECT_EQ(taken(**maker, R"({"n": 12, "s": "abc"})"), "ended");
  EXPECT_EQ(taken(**maker, R"({"n":7,"s":"ä","l":["a",null]})"), "ended");
  EXPECT_EQ(taken(**maker, R"({"n": 0)"), "refused at 6");
  EXPECT_EQ(taken(**maker, R"({"s")"), "refused at 2");
  EXPECT_EQ(taken(**maker, R"({"n": 1, "s": "abcd")"), "refused at 18");
  EXPECT_EQ(taken(**maker, R"({"n": 1, "s": "a", "l": ["a", "b")"), "refused at 31");
  EXPECT_EQ(taken(**maker, R"({"n": 1})"), "refused at 7");
  EXPECT_EQ(taken(**maker, "{\"n\": 1, \"s\": \"a\t"), "refused at 16") << "no control character in a string";
  EXPECT_EQ(taken(**maker, R"(x)"), "refused at 0");
}

TEST(Grammar, RulesThatAreAcceptedAreKept) {
  const std::unique_ptr<Compiler> made = compiler();
  struct Case {
    std::string schema, good, bad;
  };
  const Case cases[] = {
      {R"({"type":"integer","multipleOf":3})", "12", "13 "},
      {R"({"type":"number","minimum":2,"exclusiveMaximum":3})", "2.5", "3.0"},
      {R"({"properties":{"a":{"type":"null"}},"required":["a"]})", R"({"a":null})", "{}"},
      {R"({"items":{"type":"boolean"},"minItems":2})", "[true,false]", "[true]"},
      {R"({"type":"object","additionalProperties":true,"minProperties":1,"maxProperties":1})", R"({"x":1})",
       "{}"},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":true})",
       R"({"ab":1})", R"({"d":1})"},
      {R"({"type":"object","patternProperties":{"^[a-c]+$":{"type":"null"}},"additionalProperties":false})",
       R"({"ab":null})", R"({"ab":1})"},
      {R"({"type":"string","pattern":"^[x-z]{2}$"})", "\"xy\"", "\"xyz\""},
      {R"({"type":"string","format":"date"})", "\"2026-01-31\"", "\"2026-31\""},
  };
  for (const Case& one : cases) {
    const auto maker = made->json_schema(one.schema);
    ASSERT_TRUE(maker.ok()) << one.schema << ": " << maker.error().message;
    const std::string good = taken(**maker, one.good);
    EXPECT_TRUE(good == "ended" || good == "may end") << one.schema << ": " << good;
    EXPECT_EQ(taken(**maker, one.bad).substr(0, 7), "refused") << one.schema;
  }
}

TEST(Grammar, JsonObjectAndEbnf) {
  const std::unique_ptr<Compiler> made = compiler();
  const auto object = made->json_object();
  ASSERT_TRUE(object.ok()) << object.error().message;
  EXPECT_EQ(taken(**object, R"({"any": [1.5e3, {"x": "\n\u00e4"}, false]})"), "ended");
  EXPECT_EQ(taken(**object, "[1]"), "refused at 0");
  EXPECT_EQ(taken(**object, R"({"any")"), "goes on");
  const auto list = made->ebnf("root ::= \"no\" | item (\",\" item)*\nitem ::= [0-9]+");
  ASSERT_TRUE(list.ok()) << list.error().message;
  EXPECT_EQ(taken(**list, "12,3"), "may end");
  EXPECT_EQ(taken(**list, "no"), "ended");
  EXPECT_EQ(taken(**list, "12,"), "goes on");
  EXPECT_EQ(taken(**list, "1a"), "refused at 1");
}

TEST(Grammar, SpecialTokensComeOnlyAsEndOrMarker) {
  const char grammar[] = "root ::= \"<mark>\" [a-z]+";
  const std::unique_ptr<Compiler> without = compiler();
  const std::shared_ptr<Guide> plain = (*without->ebnf(grammar))->make();
  EXPECT_EQ(allowed(*plain), (std::vector<std::int32_t>{'<'}));
  const std::string_view markers[] = {"<mark>"};
  const std::unique_ptr<Compiler> with = compiler(markers);
  const std::shared_ptr<Guide> marked = (*with->ebnf(grammar))->make();
  EXPECT_EQ(allowed(*marked), (std::vector<std::int32_t>{'<', 257}));
  marked->accept(257);
  marked->accept('q');
  const std::vector<std::int32_t> may = allowed(*marked);
  EXPECT_EQ(may.size(), 27u);
  EXPECT_EQ(may.back(), kEnd);
  EXPECT_FALSE(marked->ended());
  marked->accept(kEnd);
  EXPECT_TRUE(marked->ended());
}

TEST(Grammar, WhatAGuideDoesNotKnowEndsTheRequestNotTheProcess) {
  const std::shared_ptr<Guide> guide = (*compiler()->ebnf("root ::= \"ab\""))->make();
  guide->accept('x');
  EXPECT_EQ(allowed(*guide), std::vector<std::int32_t>{});
  guide->accept(100000);
  EXPECT_EQ(allowed(*guide), std::vector<std::int32_t>{});
  EXPECT_FALSE(guide->ended());
}

TEST(Grammar, ADeadEndIsTheRulesOwnProblem) {
  const auto maker = compiler()->ebnf("root ::= \"a\" x | \"b\"\nx ::= x");
  ASSERT_TRUE(maker.ok()) << maker.error().message;
  const std::shared_ptr<Guide> dead = (*maker)->make();
  EXPECT_EQ(allowed(*dead), (std::vector<std::int32_t>{'a', 'b'}));
  EXPECT_EQ(dead->problem(), "");
  dead->accept('a');
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(allowed(*dead), std::vector<std::int32_t>{});
    EXPECT_EQ(dead->problem(), "it allows nothing more here");
  }
  EXPECT_FALSE(dead->ended());
  const std::shared_ptr<Guide> fine = (*maker)->make();
  fine->accept('b');
  EXPECT_TRUE(fine->ended());
  allowed(*fine);
  EXPECT_EQ(fine->problem(), "") << "an end is none";
}

TEST(Grammar, PatternsThatCanBeKeptAre) {
  const std::unique_ptr<Compiler> made = compiler();
  for (const char* pattern : {"^(?:ab)+$", "(?<name>a)b", "[(?=)]", "\\\\d+", "[\\\\b]?a", "^a|b$",
                              "(^a|^(?:b)$)", "(?:^a$)|c", "[$^]a", "^(a|b$)$", "\\\\^a\\\\$b"}) {
    const auto maker = made->json_schema(std::string(R"({"type":"string","pattern":")") + pattern + "\"}");
    EXPECT_TRUE(maker.ok()) << pattern << ": " << maker.error().message;
  }
}

// A token of it would take seconds, with everybody waiting: as many ways to read it as rules, squared by
// those that each goes on with.
std::string right_recursive(int ways) {
  std::string root = "root ::=";
  std::string begins, goes_on, rules;
  for (int i = 0; i < ways; ++i) {
    const std::string n = std::to_string(i);
    root += (i > 0 ? " | r" : " r") + n;
    begins += "\nr" + n + " ::= b \"" + n + "\"";
    goes_on += (i > 0 ? R"( | "x" c)" : "\nb ::= \"x\" c") + n;
    rules += "\nc" + n + " ::= \"q\" c" + n + " | \"" + n + "z\"";
  }
  return root + begins + goes_on + rules;
}

TEST(Grammar, WhatCanBeReadInTooManyWaysEndsItsRequestInTime) {
  const std::unique_ptr<Compiler> made = compiler();
  const auto maker = made->ebnf(right_recursive(320));
  ASSERT_TRUE(maker.ok()) << maker.error().message;
  const std::shared_ptr<Guide> bad = (*maker)->make();
  for (const char letter : {'x', 'q', 'q'}) bad->accept(letter);
  EXPECT_NE(bad->problem().find("too many ways"), std::string_view::npos);
  EXPECT_EQ(allowed(*bad), std::vector<std::int32_t>{});
  EXPECT_FALSE(bad->ended());
  // The next one has all of its own.
  const auto fine = made->ebnf("root ::= [a-z]+ \"!\"");
  ASSERT_TRUE(fine.ok()) << fine.error().message;
  const std::shared_ptr<Guide> guide = (*fine)->make();
  for (int i = 0; i < 100; ++i) guide->accept('a');
  EXPECT_EQ(allowed(*guide).size(), 27u);
  // So has each token, and asking again is not work.
  const auto some = made->ebnf(right_recursive(12));
  ASSERT_TRUE(some.ok()) << some.error().message;
  const std::shared_ptr<Guide> long_one = (*some)->make();
  long_one->accept('x');
  for (int i = 0; i < 2000; ++i) {
    long_one->accept('q');
    for (int again = 0; again < 3; ++again) ASSERT_FALSE(allowed(*long_one).empty()) << i;
  }
  EXPECT_EQ(long_one->problem(), "");
}

// Compiling them would take seconds to days, and all memory.
TEST(Grammar, WhatMultipliesIsRefused) {
  const std::unique_ptr<Compiler> made = compiler();
  std::string ambiguous = "root ::=", rules, alternatives, products, repeated = "root ::=";
  for (int i = 0; i < 1500; ++i) {
    ambiguous += " a" + std::to_string(i);
    rules += "\na" + std::to_string(i) + R"( ::= "x"* | "y"* | "z"?)";
  }
  for (int i = 0; i < 250; ++i) {
    const std::string text = "\"" + std::to_string(i) + "\"";
    products += (i > 0 ? " | x " : "root ::= x ") + text;
    alternatives += (i > 0 ? " | " : "\nx ::= ") + text;
  }
  for (int i = 0; i < 3000; ++i) repeated += R"( ("a"|"b"){0,100})";
  for (const std::string& text : {ambiguous + rules, products + alternatives, repeated}) {
    for (int again = 0; again < 2; ++again) {  // the second time from what is kept
      const auto maker = made->ebnf(text);
      ASSERT_FALSE(maker.ok()) << text.substr(0, 40);
      const std::string& why = maker.error().message;
      EXPECT_TRUE(why.find("limit of work") != std::string::npos ||
                  why.find("too many ways") != std::string::npos)
          << why;
    }
  }
}

// xgrammar keeps their texts with its exceptions and counts neither.
TEST(Grammar, RefusedGrammarsAreForgotten) {
  const std::unique_ptr<Compiler> made = compiler();
  const std::string filler(60000, ' ');
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 1700; ++i)
    ASSERT_FALSE(made->ebnf("root ::= missing" + std::to_string(i) + filler).ok());
  const std::size_t after = mallinfo2().uordblks;  // where the sanitizer allocates both are 0
  EXPECT_LT(after, before + kCacheBytes);
  const auto maker = made->ebnf("root ::= [a-z]+");
  ASSERT_TRUE(maker.ok()) << maker.error().message;
  EXPECT_EQ(taken(**maker, "abc"), "may end");
}

// Repeats of one refused text are not many texts: what others have compiled stays.
TEST(Grammar, ARefusedGrammarThatComesAgainEmptiesNothing) {
  const std::unique_ptr<Compiler> made = compiler();
  std::string costly = "root ::=";
  for (int i = 0; i < 3000; ++i) costly += R"( ("a"|"b"){0,100})";
  // A compilation that is refused for its work leaves less than none; what is found again takes none.
  const auto is_compiled = [&] {
    EXPECT_FALSE(made->ebnf(costly).ok());
    return xgrammar::WorkLeft() < 0;
  };
  EXPECT_TRUE(is_compiled());
  EXPECT_FALSE(is_compiled());
  const std::string filler(60000, ' ');
  const auto refuse = [&](int different) {
    for (int i = 0; i < 1700; ++i)
      ASSERT_FALSE(made->ebnf("root ::= missing" + std::to_string(i % different) + filler).ok());
  };
  refuse(3);
  EXPECT_FALSE(is_compiled());
  refuse(1700);
  EXPECT_TRUE(is_compiled()) << "what many texts take is given back";
}

TEST(Grammar, OrdinaryToolSchemasAreFarFromTheLimit) {
  const std::unique_ptr<Compiler> made = compiler();
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < 50; ++i) {
    schema += (i > 0 ? ",\"property_" : "\"property_") + std::to_string(i) + R"(":{"type":"string","enum":[)";
    for (int j = 0; j < 20; ++j)
      schema += (j > 0 ? ",\"value_" : "\"value_") + std::to_string(i) + "_" + std::to_string(j) + "\"";
    schema += "]}";
  }
  for (const char* end :
       {R"(}})", R"(},"additionalProperties":false,"required":["property_0","property_49"]})"}) {
    const auto maker = made->json_schema(schema + end);
    ASSERT_TRUE(maker.ok()) << maker.error().message;
    EXPECT_EQ(taken(**maker, R"({"property_0": "value_0_19", "property_49": "value_49_7"})"), "ended");
  }
}

TEST(Grammar, BadInputIsRefusedWithItsPlace) {
  const std::unique_ptr<Compiler> made = compiler();
  struct Case {
    std::string schema, part;
  };
  const Case cases[] = {
      {"", "the JSON schema: # is not JSON"},
      {"{", "not JSON"},
      {"[]", "the JSON schema: # is no schema"},
      {R"({"type":"nothing"})", "cannot be compiled"},
      {R"({"properties":{"a":{"not":{}}}})", "#/properties/a/not"},
      {R"({"type":"array","uniqueItems":true})", "#/uniqueItems"},
      {R"({"allOf":[{"type":"object"},{"required":["a"]}]})", "#/allOf"},
      {R"({"anyOf":[{"type":"object"}],"required":["a"]})", "anyOf hides required"},
      {R"({"$ref":"#/$defs/a","anyOf":[]})", "hides"},
      {R"({"anyOf":[]})", "#/anyOf is empty"},
      {R"({"items":{"oneOf":[]}})", "#/items/oneOf is empty"},
      {R"({"type":"string","pattern":"(?=a)b"})", "held to (?="},
      {R"({"type":"string","pattern":"^a(?<!b)$"})", "held to (?<!"},
      {R"({"type":"string","pattern":"(?i)a"})", "held to (?i"},
      {R"({"type":"string","pattern":"a\\b"})", "held to \\b"},
      {R"({"type":"string","pattern":"(a)\\1"})", "held to \\1"},
      {R"({"type":"string","pattern":"[\\p{L}]"})", "held to \\p"},
      {R"x({"type":"string","pattern":"^a$|b^c$d"})x", "held to ^ but at its begin"},
      {R"x({"type":"string","pattern":"a(^b)"})x", "held to ^"},
      {R"x({"type":"string","pattern":"(?:^a)+"})x", "held to ^"},
      {R"x({"type":"string","pattern":"a$b"})x", "held to $ but at its end"},
      {R"x({"type":"string","pattern":"(a$|b)c"})x", "held to $"},
      {R"x({"type":"string","pattern":"(?<n>a$)[b]"})x", "held to $"},
      {R"({"type":"object","patternProperties":{"^(?!a)b":{}}})", "#/patternProperties: "},
      {R"({"$ref":"#"})", "no answer at all"},
      {R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       "no answer at all"},
      {R"({"type":"string","maxLength":1000000})", "0 to 1000"},
      {R"({"type":"array","minItems":-1})", "0 to 1000"},
      {R"({"type":"string","pattern":"a+","minLength":3})", "pattern hides"},
      {R"({"minimum":3})", "#/minimum"},
      {R"({"properties":{"a":{"pattern":"a+"}}})", "#/properties/a/pattern"},
      {R"({"required":["a"]})", "#/required"},
      {R"({"minItems":2,"properties":{}})", "#/minItems"},
      {R"({"type":"number","multipleOf":3})", "#/multipleOf"},
      {R"({"type":"integer","multipleOf":3,"minimum":4})", "#/multipleOf"},
      {R"({"type":"integer","multipleOf":2000})", "#/multipleOf"},
      {R"({"$ref":"#/nowhere"})", "cannot be compiled"},
      {R"({"$ref":"http://example.org/s"})", "#/$ref"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "cannot be compiled"},
      {std::string(200, '[') + std::string(200, ']'), "the JSON schema: # is 200 levels deep"},
      {"{\"title\":\"" + std::string(70000, 'x') + "\"}", "at most 65536"},
  };
  for (const Case& one : cases) {
    const auto maker = made->json_schema(one.schema);
    ASSERT_FALSE(maker.ok()) << one.schema;
    EXPECT_NE(maker.error().message.find(one.part), std::string::npos)
        << one.schema.substr(0, 100) << ": " << maker.error().message;
  }
  for (const std::string& text :
       {std::string("root ::= "), std::string("rule ::= \"a\""), std::string("root ::= missing"),
        std::string("root ::= \"a"), "root ::= " + std::string(60000, '('), std::string("root ::= root"),
        std::string("root ::= x\nx ::= y x\ny ::= x | \"\"")})
    EXPECT_FALSE(made->ebnf(text).ok()) << text.substr(0, 40);
}

// Random bytes of the alphabet of schemas: an answer or a reason, never a crash.
TEST(Grammar, RandomSchemasAreAnswered) {
  const std::unique_ptr<Compiler> made = compiler();
  const std::vector<std::string> words = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ":",
                                          ",",
                                          "\"type\"",
                                          "\"object\"",
                                          "\"string\"",
                                          "\"properties\"",
                                          "\"a\"",
                                          "\"anyOf\"",
                                          "\"items\"",
                                          "1",
                                          "true",
                                          "\"pattern\"",
                                          "\"[a-z\"",
                                          "\"enum\"",
                                          "\"required\"",
                                          "{\"type\":\"integer\"}",
                                          "\"$ref\"",
                                          "\"#\"",
                                          "null",
                                          "-3",
                                          "1e400"};
  std::mt19937 random(5);
  int good = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string schema = "{";
    for (std::size_t n = random() % 12; n > 0; --n) {
      schema += words[6 + random() % (words.size() - 6)] + ":" + words[6 + random() % (words.size() - 6)];
      schema += n > 1 ? "," : "";
    }
    schema += "}";
    good += made->json_schema(schema).ok() ? 1 : 0;
  }
  EXPECT_GT(good, 20);
}

}  // namespace
}  // namespace quire::grammar
