//! The continue token of a list: which version, and after which object.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::apiserver::error::ApiError;

const API_VERSION: &str = "meta.k8s.io/v1";

/// Where the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The version of all pages; `None` for a list that continues with the current objects.
    pub version: Option<u64>,
    /// The first key that may follow, relative to the listed prefix, with a leading slash.
    start: String,
    /// How many objects the pages so far held.
    pub seen: usize,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    v: String,
    rv: i64,
    start: String,
    /// The one thing that the API server does not keep here: it has its store count for it.
    #[serde(default)]
    seen: usize,
}

impl Token {
    /// Continues after `key`, the last of `seen` objects.
    pub fn after(version: u64, key: &str, seen: usize) -> Self {
        Token {
            version: Some(version),
            start: format!("/{key}\0"),
            seen,
        }
    }

    /// Continues at the same position with the current objects.
    pub fn inconsistent(&self) -> Self {
        Token {
            version: None,
            ..self.clone()
        }
    }

    /// The first key that may follow among those that begin with `prefix`.
    pub fn start_below(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.start.trim_start_matches('/'))
    }

    /// As it travels.
    pub fn encode(&self) -> String {
        let rv = self
            .version
            .and_then(|version| i64::try_from(version).ok())
            .unwrap_or(-1);
        let wire = Wire {
            v: API_VERSION.to_owned(),
            rv,
            start: self.start.clone(),
            seen: self.seen,
        };
        URL_SAFE_NO_PAD.encode(serde_json::json!(wire).to_string())
    }

    /// Parses a token from a client.
    pub fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &str| ApiError::bad_request(format!("invalid continue token: {why}"));
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| refuse(&error.to_string()))?;
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|error| refuse(&error.to_string()))?;
        if wire.v != API_VERSION {
            return Err(refuse(&format!(
                "server does not recognize this encoded version {:?}",
                wire.v
            )));
        }
        let version = match wire.rv {
            0 => return Err(refuse("incorrect encoded start resourceVersion")),
            -1 => None,
            rv => Some(u64::try_from(rv).map_err(|_| refuse("incorrect encoded start resourceVersion"))?),
        };
        Ok(Token {
            version,
            start: wire.start,
            seen: wire.seen,
        })
    }
}
