//! Whether an answer or an event is the expected one.

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::rest::Answer;

/// How far a time may be from the expected one, in seconds.
const TOLERANCE: i64 = 3;

/// Compares an answer with `CODE [REASON] [JSON]` or `CODE names A B`.
pub(super) fn answer(expected: &str, answer: &Answer) -> Result<()> {
    let (code, rest) = expected.split_once(' ').unwrap_or((expected, ""));
    let code: u16 = code.parse().context("a code that is no number")?;
    ensure!(answer.code() == code, "it is {} {}", answer.code(), answer.body);
    if let Some(names) = rest.strip_prefix("names") {
        let items = answer.body["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found: Vec<&str> = items
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .collect();
        ensure!(
            found == names.split_whitespace().collect::<Vec<_>>(),
            "the names are {found:?}"
        );
        return Ok(());
    }
    let (reason, body) = if rest.starts_with(char::is_uppercase) {
        rest.split_once(' ').unwrap_or((rest, ""))
    } else {
        ("", rest)
    };
    if !reason.is_empty() {
        let refusal = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason});
        same(&refusal, &answer.body)?;
    }
    if body.is_empty() {
        return Ok(());
    }
    same(
        &serde_json::from_str(body).context("an expectation that is no JSON")?,
        &answer.body,
    )
}

/// Compares the next event of a watch with `TYPE NAME`, `TYPE JSON` or `end`.
pub(super) fn event(expected: &str, event: Option<&(String, Value)>) -> Result<()> {
    match (expected.split_once(' '), event) {
        (None, None) => Ok(()),
        (Some((kind, object)), Some((found, value))) => {
            ensure!(kind == found, "it is {found} {value}");
            if object.starts_with('{') {
                return same(
                    &serde_json::from_str(object).context("an event that is no JSON")?,
                    value,
                );
            }
            same(&json!({"metadata": {"name": object}}), value)
        }
        _ => bail!("it is {event:?}"),
    }
}

fn same(expected: &Value, found: &Value) -> Result<()> {
    differences(expected, found, "").map_or(Ok(()), |difference| bail!("{difference} in {found}"))
}

/// The first difference, with where it is.
fn differences(expected: &Value, found: &Value, place: &str) -> Option<String> {
    let differs = || Some(format!("{place} is {found}, not {expected}"));
    match (expected, found) {
        (Value::Object(rule), Value::Array(items)) => {
            if rule.get("len").is_some_and(|len| *len != items.len()) {
                return differs();
            }
            let wanted = match rule.get("any") {
                Some(Value::Array(wanted)) => wanted.as_slice(),
                Some(wanted) => std::slice::from_ref(wanted),
                None => &[],
            };
            let has = |wanted: &Value| items.iter().any(|item| differences(wanted, item, "").is_none());
            let missing = wanted.iter().find(|wanted| !has(wanted))?;
            Some(format!("{place} has no {missing}"))
        }
        (Value::Object(fields), Value::Object(_)) => fields
            .iter()
            .find_map(|(name, value)| differences(value, &found[name], &format!("{place}.{name}"))),
        (Value::Array(wanted), Value::Array(items)) if wanted.len() == items.len() => wanted
            .iter()
            .zip(items)
            .enumerate()
            .find_map(|(index, (wanted, item))| differences(wanted, item, &format!("{place}[{index}]"))),
        (Value::String(wanted), Value::String(text)) if fits(wanted, text) => None,
        _ if expected == found => None,
        _ => differs(),
    }
}

fn fits(wanted: &str, text: &str) -> bool {
    let numbers = |least: &str| Some((text.parse::<u64>().ok()?, least.parse::<u64>().ok()?));
    let Some((rule, rest)) = wanted.split_at_checked(1) else {
        return text.is_empty();
    };
    match rule {
        "*" => !text.is_empty(),
        "!" => text != rest,
        "~" => text.contains(rest),
        ">" => match rest.strip_prefix('=') {
            Some(least) => numbers(least).is_some_and(|(number, least)| number >= least),
            None => numbers(rest).is_some_and(|(number, least)| number > least),
        },
        "+" => {
            let left = text
                .parse()
                .map(|at: Timestamp| at.duration_since(Timestamp::now()).as_secs());
            let expected = rest.parse::<i64>();
            left.is_ok_and(|left| expected.is_ok_and(|expected| (left - expected).abs() <= TOLERANCE))
        }
        _ => wanted == text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_is_the_same() {
        let in_a_minute = (Timestamp::now() + jiff::SignedDuration::from_secs(60)).to_string();
        let found = json!({
            "text": "abc", "number": "12", "time": in_a_minute, "list": [{"name": "a", "more": 1}, {"name": "b"}],
        });
        for (expected, is_same) in [
            (json!({}), true),
            (json!({"text": "abc", "absent": null}), true),
            (json!({"text": null}), false),
            (json!({"text": "~b"}), true),
            (json!({"text": "~x"}), false),
            (json!({"text": "*"}), true),
            (json!({"absent": "*"}), false),
            (json!({"text": "!abc"}), false),
            (json!({"number": ">11"}), true),
            (json!({"number": ">12"}), false),
            (json!({"number": ">=12"}), true),
            (json!({"time": "+60"}), true),
            (json!({"time": "+90"}), false),
            (json!({"list": [{"name": "a"}, {"name": "b"}]}), true),
            (json!({"list": [{"name": "a"}]}), false),
            (json!({"list": {"any": {"name": "b"}}}), true),
            (json!({"list": {"any": [{"name": "b"}, {"name": "c"}]}}), false),
            (json!({"list": {"len": 3}}), false),
        ] {
            assert_eq!(same(&expected, &found).is_ok(), is_same, "{expected}");
        }
    }
}
