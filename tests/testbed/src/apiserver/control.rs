//! The testbed's own paths, for a server in a separate process. No Kubernetes API has them.
//!
//! `POST /testbed/objects` stores an array of objects, for simulations that need many.

use http::Method;
use serde_json::Value;

use super::answer::Answer;
use super::error::ApiError;
use super::handler::Call;
use super::shared::Shared;
use super::writes;

/// Handles a request to `/testbed/…`.
///
/// # Errors
/// There is no such path, or its body cannot be read.
pub fn handle(shared: &Shared, call: &Call, what: &str) -> Result<Answer, ApiError> {
    if (&call.method, what) != (&Method::POST, "objects") {
        return Err(ApiError::no_such_path());
    }
    let objects: Vec<Value> =
        serde_json::from_slice(&call.body).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let mut store = shared.store();
    for object in objects {
        writes::insert_raw(&mut store, object, shared.now())?;
    }
    Ok(Answer::success(200))
}
