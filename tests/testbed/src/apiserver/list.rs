//! Lists: from which version, how much at once, and how they go on.

pub mod token;

use std::sync::Arc;

use super::error::{ApiError, Cause};
use super::kinds::Kind;
use super::query::Query;
use super::selector::Selector;
use super::store::Store;
use super::stored::Stored;
use token::Token;

/// Which state a list shows.
#[derive(Debug)]
pub struct ListOptions {
    /// Which objects.
    pub selector: Selector,
    limit: Option<usize>,
    from: From,
}

/// Which state is listed.
#[derive(Debug, PartialEq, Eq)]
enum From {
    /// The current state.
    Now,
    /// The current state, once this version is reached.
    NotOlder(u64),
    /// The state at this version.
    Exactly(u64),
    /// Where another page ended.
    Continued(Token),
}

/// One page.
#[derive(Debug)]
pub struct Page {
    /// The version of the list.
    pub version: u64,
    /// The objects.
    pub items: Vec<Arc<Stored>>,
    /// How many follow, if that is known.
    pub remaining: Option<usize>,
    next: Option<Token>,
}

// === impl ListOptions ===

impl ListOptions {
    /// Reads the query of a list.
    ///
    /// # Errors
    /// Parameters that cannot be read, or contradict each other.
    pub fn parse(query: &Query, selector: Selector) -> Result<Self, ApiError> {
        let version = query.get("resourceVersion");
        let matching = query.get("resourceVersionMatch");
        check_combination(query, version, matching)?;
        let number = version.map(parse_version).transpose()?;
        let limit = query
            .number("limit")?
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| *limit > 0);
        if let Some(token) = query.get("continue") {
            if number.is_some_and(|number| number != 0) {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            return Ok(ListOptions {
                selector,
                limit,
                from: From::Continued(Token::decode(token)?),
            });
        }
        let (from, limit) = match (number, matching) {
            (None, _) => (From::Now, limit),
            (Some(0), None) => (From::Now, None),
            (Some(number), Some("Exact")) => (From::Exactly(number), limit),
            (Some(number), None) if limit.is_some() => (From::Exactly(number), limit),
            (Some(number), _) => (From::NotOlder(number), limit),
        };
        Ok(ListOptions { selector, limit, from })
    }

    /// The version that must be reached before this list can be answered.
    #[must_use]
    pub fn awaited(&self) -> Option<u64> {
        match self.from {
            From::NotOlder(version) | From::Exactly(version) => Some(version),
            From::Now | From::Continued(_) => None,
        }
    }
}

/// Reads a resourceVersion that has to be a number.
///
/// # Errors
/// It is none.
pub fn parse_version(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}

fn check_combination(query: &Query, version: Option<&str>, matching: Option<&str>) -> Result<(), ApiError> {
    let field = "resourceVersionMatch";
    let cause = if query.get("sendInitialEvents").is_some() {
        Cause::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    } else {
        match matching {
            None => return Ok(()),
            Some(_) if version.is_none() => Cause::forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            Some(_) if query.get("continue").is_some() => {
                Cause::forbidden(field, "resourceVersionMatch is forbidden when continue is provided")
            }
            Some("Exact") if version == Some("0") => Cause::forbidden(
                field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ),
            Some("Exact" | "NotOlderThan") => return Ok(()),
            Some(other) => Cause::invalid(
                field,
                &other.into(),
                "supported values: \"\", \"Exact\", \"NotOlderThan\"",
            ),
        }
    };
    Err(ApiError::invalid_options("ListOptions", vec![cause]))
}

/// Answers a list over the keys that begin with `prefix`.
///
/// # Errors
/// The state that is asked for is no longer known.
pub fn page(store: &Store, kind: &'static Kind, prefix: &str, options: &ListOptions) -> Result<Page, ApiError> {
    let table = store.table(kind);
    let (version, start, seen) = match &options.from {
        From::Now | From::NotOlder(_) => (store.version(), String::new(), 0),
        From::Exactly(version) => (*version, String::new(), 0),
        From::Continued(token) => (
            token.version.unwrap_or(store.version()),
            token.start_below(prefix),
            token.seen,
        ),
    };
    let objects = table
        .range_at(prefix, &start, version)
        .map_err(|_| match &options.from {
            From::Continued(token) => ApiError::continue_expired(token.inconsistent().encode()),
            _ => ApiError::expired("The resourceVersion for the provided list is too old."),
        })?;
    let mut matching = objects.filter(|object| options.selector.matches(object));
    let items: Vec<Arc<Stored>> = matching
        .by_ref()
        .take(options.limit.unwrap_or(usize::MAX))
        .cloned()
        .collect();
    let more = options.limit.is_some() && matching.next().is_some();
    let seen = seen + items.len();
    let last = items.last().filter(|_| more);
    let next = last.map(|last| Token::after(version, last.key().strip_prefix(prefix).unwrap_or(last.key()), seen));
    let remaining = (more && options.selector.is_empty()).then(|| {
        if prefix.is_empty() {
            // Of a million objects, not all are counted again for each page.
            table.len_at(version).saturating_sub(seen).max(1)
        } else {
            1 + matching.count()
        }
    });
    Ok(Page {
        version,
        items,
        next,
        remaining,
    })
}

// === impl Page ===

impl Page {
    /// All of `items`, as they were at `version`.
    #[must_use]
    pub fn of_all(version: u64, items: Vec<Arc<Stored>>) -> Self {
        Page {
            version,
            items,
            next: None,
            remaining: None,
        }
    }

    /// The continue token, if this is not the last page.
    #[must_use]
    pub fn next(&self) -> Option<String> {
        self.next.as_ref().map(Token::encode)
    }

    /// The metadata of the list as JSON. Lists of custom objects say even that they do not continue.
    #[must_use]
    pub fn metadata(&self, custom: bool) -> String {
        let mut metadata = format!(r#"{{"resourceVersion":"{}""#, self.version);
        if let Some(next) = self.next().or_else(|| custom.then(String::new)) {
            metadata.push_str(&format!(r#","continue":"{next}""#));
        }
        if let Some(remaining) = self.remaining {
            metadata.push_str(&format!(r#","remainingItemCount":{remaining}"#));
        }
        metadata.push('}');
        metadata
    }
}

#[cfg(test)]
mod tests;
