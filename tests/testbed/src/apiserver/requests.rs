//! What was asked and answered lately.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// How many requests are kept.
const KEPT: usize = 10_000;

/// What somebody asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// The API verb, or the HTTP method where there is none.
    pub verb: String,
    /// The resource with its subresource, empty for other paths.
    pub resource: String,
    /// The namespace, if any.
    pub namespace: String,
    /// The name of the object, if any.
    pub name: String,
    /// The path with its query.
    pub path: String,
    /// The user.
    pub user: String,
}

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// What was asked.
    #[serde(flatten)]
    pub asked: Asked,
    /// The connection that it came over, counted from 1.
    pub connection: u64,
    /// The code of the answer; none if there was no answer.
    pub code: Option<u16>,
}

/// The last requests, oldest first.
#[derive(Debug, Default)]
pub struct Requests {
    kept: Mutex<VecDeque<Request>>,
    connections: AtomicU64,
}

// === impl Requests ===

impl Requests {
    /// The number of a new connection.
    pub(super) fn opened(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes a request.
    pub(super) fn note(&self, asked: Asked, connection: u64, code: Option<u16>) {
        let mut requests = self.kept();
        if requests.len() == KEPT {
            requests.pop_front();
        }
        requests.push_back(Request {
            asked,
            connection,
            code,
        });
    }

    /// All that are kept.
    #[must_use]
    pub fn all(&self) -> Vec<Request> {
        self.kept().iter().cloned().collect()
    }

    /// Forgets them.
    pub fn clear(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
