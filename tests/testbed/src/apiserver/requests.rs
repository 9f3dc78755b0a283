//! The latest requests and their answers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of recorded requests.
const KEPT: usize = 10_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The API verb, or the HTTP method where there is none.
    pub verb: String,
    /// The resource with its subresource, empty for other paths.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// The path with its query.
    pub path: String,
    pub user: String,
}

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub asked: Asked,
    /// The connection that it came over, counted from 1.
    pub connection: u64,
    /// The code of the answer; none if there was no answer.
    pub code: Option<u16>,
}

/// Called twice for every request: with its body and no code on arrival, before any fault, and with the code after its
/// execution, before its answer can get lost. Nothing else happens between execution and the call.
pub type Witness = Box<dyn Fn(&Asked, &[u8], Option<u16>) + Send + Sync>;

/// The last requests, oldest first.
#[derive(Default)]
pub struct Requests {
    kept: Mutex<VecDeque<Request>>,
    connections: AtomicU64,
    compressed: AtomicBool,
    witness: OnceLock<Witness>,
}

impl Requests {
    /// A request names encodings that its answer may have.
    pub(super) fn may_compress(&self) {
        self.compressed.store(true, Ordering::Relaxed);
    }

    /// Whether any request has done so.
    pub(super) fn were_compressed(&self) -> bool {
        self.compressed.load(Ordering::Relaxed)
    }

    /// The number of a new connection.
    pub(super) fn opened(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets the witness; only the first one is used.
    pub(super) fn set_witness(&self, witness: Witness) {
        self.witness.set(witness).ok();
    }

    /// Calls the witness.
    pub(super) fn witnessed(&self, asked: &Asked, body: &[u8], code: Option<u16>) {
        if let Some(witness) = self.witness.get() {
            witness(asked, body, code);
        }
    }

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

    /// All recorded requests.
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

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests")
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}
