//! Label selectors, equality- and set-based: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

use std::iter::Peekable;
use std::vec::IntoIter;

use serde_json::Value;

/// Requirements that must all hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, PartialEq, Eq)]
struct Requirement {
    label: String,
    test: Test,
}

#[derive(Debug, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Equal,
    NotEqual,
    Not,
    Comma,
    Open,
    Close,
    Above,
    Below,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads a selector; the empty one matches everything.
    ///
    /// # Errors
    /// What was found where something else was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = tokens(text).into_iter().peekable();
        let mut requirements = Vec::new();
        while tokens.peek().is_some() {
            requirements.push(requirement(&mut tokens)?);
            match tokens.next() {
                None => break,
                Some(Token::Comma) if tokens.peek().is_some() => {}
                Some(found) => return Err(format!("found {found:?}, expected: ',' or end of string")),
            }
        }
        Ok(LabelSelector(requirements))
    }

    /// Whether every object matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the labels of this object match.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let labels = object.pointer("/metadata/labels");
        self.0.iter().all(|requirement| {
            let label = labels
                .and_then(|labels| labels.get(&requirement.label))
                .and_then(Value::as_str);
            requirement.test.holds(label)
        })
    }
}

// === impl Test ===

impl Test {
    fn holds(&self, label: Option<&str>) -> bool {
        let number = || label.and_then(|label| label.parse::<i64>().ok());
        match self {
            Test::Exists => label.is_some(),
            Test::Absent => label.is_none(),
            Test::In(values) => label.is_some_and(|label| values.iter().any(|value| value == label)),
            Test::NotIn(values) => label.is_none_or(|label| values.iter().all(|value| value != label)),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

fn requirement(tokens: &mut Peekable<IntoIter<Token>>) -> Result<Requirement, String> {
    if tokens.next_if_eq(&Token::Not).is_some() {
        return Ok(Requirement {
            label: word(tokens)?,
            test: Test::Absent,
        });
    }
    let label = word(tokens)?;
    if label.is_empty() {
        return Err("found nothing, expected: identifier".to_owned());
    }
    let test = match tokens.peek() {
        None | Some(Token::Comma) => Test::Exists,
        Some(_) => comparison(tokens)?,
    };
    Ok(Requirement { label, test })
}

fn comparison(tokens: &mut Peekable<IntoIter<Token>>) -> Result<Test, String> {
    match tokens.next() {
        Some(Token::Equal) => Ok(Test::In(vec![optional_word(tokens)])),
        Some(Token::NotEqual) => Ok(Test::NotIn(vec![optional_word(tokens)])),
        Some(Token::Above) => Ok(Test::Above(number(tokens)?)),
        Some(Token::Below) => Ok(Test::Below(number(tokens)?)),
        Some(Token::Word(operator)) if operator == "in" => Ok(Test::In(values(tokens)?)),
        Some(Token::Word(operator)) if operator == "notin" => Ok(Test::NotIn(values(tokens)?)),
        found => Err(format!("found {found:?}, expected: in, notin, =, ==, !=, gt, lt")),
    }
}

fn word(tokens: &mut Peekable<IntoIter<Token>>) -> Result<String, String> {
    match tokens.next() {
        Some(Token::Word(word)) => Ok(word),
        found => Err(format!("found {found:?}, expected: identifier")),
    }
}

fn optional_word(tokens: &mut Peekable<IntoIter<Token>>) -> String {
    match tokens.next_if(|token| matches!(token, Token::Word(_))) {
        Some(Token::Word(word)) => word,
        _ => String::new(),
    }
}

fn number(tokens: &mut Peekable<IntoIter<Token>>) -> Result<i64, String> {
    let word = word(tokens)?;
    word.parse()
        .map_err(|_| format!("{word:?}: for 'Gt', 'Lt' operators, the value must be an integer"))
}

fn values(tokens: &mut Peekable<IntoIter<Token>>) -> Result<Vec<String>, String> {
    if tokens.next() != Some(Token::Open) {
        return Err("expected: '('".to_owned());
    }
    let mut values = Vec::new();
    loop {
        values.push(optional_word(tokens));
        match tokens.next() {
            Some(Token::Comma) => {}
            Some(Token::Close) => return Ok(values),
            found => return Err(format!("found {found:?}, expected: ',' or ')'")),
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            ',' => (Token::Comma, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '>' => (Token::Above, 1),
            '<' => (Token::Below, 1),
            '!' if rest.starts_with("!=") => (Token::NotEqual, 2),
            '!' => (Token::Not, 1),
            '=' if rest.starts_with("==") => (Token::Equal, 2),
            '=' => (Token::Equal, 1),
            _ => {
                let end = rest
                    .find(|c: char| c.is_whitespace() || ",()<>!=".contains(c))
                    .unwrap_or(rest.len());
                (Token::Word(rest[..end].to_owned()), end)
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(selector: &str, labels: &Value) -> bool {
        LabelSelector::parse(selector)
            .unwrap()
            .matches(&json!({ "metadata": { "labels": labels } }))
    }

    #[test]
    fn every_operator_decides_as_documented() {
        let labels = json!({ "app": "web", "tier": "front", "weight": "7" });
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("app=web", true),
            ("app == web, tier!=back", true),
            ("app in (db, web)", true),
            ("app notin (db,web)", false),
            ("zone notin (a)", true),
            ("zone!=a", true),
            ("zone in (a)", false),
            ("!zone,weight>6,weight<8", true),
            ("weight>7", false),
            ("app>1", false),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for selector in ["=a", "a in b", "a in (b", "a b", "a,", "a>x", "!"] {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
    }
}
