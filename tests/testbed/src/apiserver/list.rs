//! Lists: from which version, how much at once, and how they go on.

pub mod token;

use std::sync::Arc;

use super::error::ApiError;
use super::kinds::Kind;
use super::query::Query;
use super::selector::Selector;
use super::store::Store;
use super::stored::Stored;
use token::Token;

/// Which state a list shows.
#[derive(Debug)]
pub struct ListOptions {
    pub selector: Selector,
    limit: Option<usize>,
    /// The version that must have been reached.
    at_least: Option<u64>,
    /// The position after another page.
    continued: Option<Token>,
}

#[derive(Debug)]
pub struct Page {
    /// The version of the list.
    pub version: u64,
    pub items: Vec<Arc<Stored>>,
    /// How many follow, if that is known.
    pub remaining: Option<usize>,
    next: Option<Token>,
}

impl ListOptions {
    /// Reads the query of a list.
    pub fn parse(query: &Query, selector: Selector) -> Result<Self, ApiError> {
        let version = query.get("resourceVersion").map(parse_version).transpose()?;
        let version = version.filter(|version| *version != 0);
        let limit = query
            .number("limit")?
            .and_then(|limit| usize::try_from(limit).ok())
            .filter(|limit| *limit > 0)
            .filter(|_| query.get("resourceVersion") != Some("0"));
        let continued = query.get("continue").map(Token::decode).transpose()?;
        if version.is_some() && continued.is_some() {
            let why = "specifying resource version is not allowed when using continue";
            return Err(ApiError::bad_request(why));
        }
        if version.is_some() && limit.is_some() {
            return Err(ApiError::bad_request("this server does not serve lists of the past"));
        }
        Ok(ListOptions {
            selector,
            limit,
            at_least: version,
            continued,
        })
    }
}

/// Reads a resourceVersion that has to be a number.
pub fn parse_version(text: &str) -> Result<u64, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}

/// Answers a list over the keys that begin with `prefix`.
pub fn page(store: &Store, kind: &'static Kind, prefix: &str, options: &ListOptions) -> Result<Page, ApiError> {
    let table = store.table(kind);
    if let Some(version) = options.at_least.filter(|version| *version > store.version()) {
        return Err(ApiError::version_too_large(version, store.version()));
    }
    let (version, start, seen) = match &options.continued {
        None => (store.version(), String::new(), 0),
        Some(token) => (
            token.version.unwrap_or(store.version()),
            token.start_below(prefix),
            token.seen,
        ),
    };
    let objects = table.range_at(prefix, &start, version).map_err(|_| {
        let token = options.continued.as_ref().map(|token| token.inconsistent().encode());
        ApiError::continue_expired(token.unwrap_or_default())
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

impl Page {
    /// The continue token, if this is not the last page.
    pub fn next(&self) -> Option<String> {
        self.next.as_ref().map(Token::encode)
    }

    /// The metadata of the list as JSON. Lists of custom objects say even that they do not continue.
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
