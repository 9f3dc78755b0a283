//! The query of a request.

use super::error::ApiError;

/// Parameters by name; the first of a name counts.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

/// Parameters of the real API server that are not served here.
const UNSERVED: [&str; 7] = [
    "dryRun",
    "gracePeriodSeconds",
    "labelSelector",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersionMatch",
    "sendInitialEvents",
];

impl Query {
    pub fn parse(text: &str) -> Self {
        Query(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// One parameter, if it is there and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// One parameter as a whole number.
    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let number = self.get(name).map(str::parse).transpose();
        number.map_err(|_| ApiError::bad_request(format!("unable to parse query parameter {name}: not a number")))
    }

    /// One parameter as yes or no.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(_) => Err(ApiError::bad_request(format!(
                "unable to parse query parameter {name}: not a boolean"
            ))),
        }
    }

    /// Refuses the parameters that no client sends here, instead of answering as if they were not there.
    pub fn check_served(&self) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| UNSERVED.contains(&name.as_str())) {
            Some((name, _)) => Err(ApiError::bad_request(format!("this server does not serve {name}"))),
            None => Ok(()),
        }
    }
}
