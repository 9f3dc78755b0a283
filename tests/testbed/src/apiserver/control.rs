//! The testbed's own paths, for a server in a separate process. No Kubernetes API has them.
//!
//! `GET|POST|DELETE /testbed/faults`, `GET|DELETE /testbed/requests`, `POST /testbed/compact`, `POST /testbed/objects`:
//! also by the array, for simulations that need many.

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answer::Answer;
use super::error::ApiError;
use super::faults::Fault;
use super::handler::Call;
use super::shared::Shared;
use super::writes;

/// Handles a request to `/testbed/…`.
///
/// # Errors
/// There is no such path, or its body cannot be read.
pub fn handle(shared: &Shared, call: &Call, what: &str) -> Result<Answer, ApiError> {
    match (&call.method, what) {
        (&Method::GET, "faults") => return Ok(Answer::json(200, &json!(shared.faults.pending()))),
        (&Method::POST, "faults") => shared.faults.inject(body::<Fault>(call)?),
        (&Method::DELETE, "faults") => shared.faults.clear(),
        (&Method::GET, "requests") => return Ok(Answer::json(200, &json!(shared.requests.all()))),
        (&Method::DELETE, "requests") => shared.requests.clear(),
        (&Method::POST, "compact") => shared.store().compact(),
        (&Method::POST, "objects") => {
            let objects = match body::<Value>(call)? {
                Value::Array(objects) => objects,
                object => return writes::insert_raw(&mut shared.store(), object, shared.now()),
            };
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
