//! The testbed's own paths, for a server in a separate process. No Kubernetes API has them.
//!
//! - `POST /testbed/objects` stores an array of objects, for simulations that need many.

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::Answer;
use super::error::ApiError;
use super::handler::Call;
use super::shared::Shared;
use super::writes;

/// Handles a request to `/testbed/…`.
pub fn handle(shared: &Shared, call: &Call, what: &str) -> Result<Answer, ApiError> {
    match (&call.method, what) {
        (&Method::POST, "objects") => {
            let objects: Vec<Value> = body(call)?;
            let mut store = shared.store();
            for object in objects {
                writes::insert_raw(&mut store, object, shared.now())?;
            }
        }
        _ => return Err(ApiError::no_such_path()),
    }
    Ok(Answer::success(200))
}

fn body<T: DeserializeOwned>(call: &Call) -> Result<T, ApiError> {
    serde_json::from_slice(&call.body).map_err(|error| ApiError::bad_request(error.to_string()))
}
