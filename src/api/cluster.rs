//! Identity of the connected cluster, and the resourceVersion of its store.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::{ApiError, error::read};

/// The UID of this namespace identifies the cluster. A list also has the store's resourceVersion.
pub(super) const PATH: &str = "/api/v1/namespaces?fieldSelector=metadata.name%3Dkube-system";

/// The cluster of the first connection, which all later ones have to lead to.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    uid: OnceLock<String>,
    /// Highest resourceVersion seen; `None` without a [`StoreFollower`].
    version: Mutex<Option<u64>>,
    restored: watch::Sender<Option<String>>,
}

/// While it exists, no connection is used that shows an older state of the store than an earlier one.
#[derive(Debug)]
pub struct StoreFollower(Arc<Cluster>);

// === impl Cluster ===

impl Cluster {
    /// Fails if a list of [`PATH`] shows another cluster, or an older state of its store. `before` is the highest version at the
    /// time of the request.
    pub(super) fn check(&self, list: &[u8], before: Option<u64>) -> Result<(), ApiError> {
        let list: Value = read("GET", PATH, list)?;
        let version = list["metadata"]["resourceVersion"].as_str().map(str::parse);
        let uid = match list["items"].as_array().map(Vec::as_slice) {
            Some([kube_system]) => kube_system["metadata"]["uid"].as_str(),
            _ => None,
        };
        let (Some(Ok(version)), Some(uid)) = (version, uid) else {
            let why = "it lacks the namespace kube-system or a numeric resourceVersion";
            return Err(ApiError::unreadable("GET", PATH, why));
        };
        let known = self.uid.get_or_init(|| uid.to_owned());
        if known != uid {
            let why = format!(
                "this is another cluster: its namespace kube-system has the UID {uid}, where it was {known} before; if that \
                 is meant, start the agent again"
            );
            return Err(ApiError::blocked("GET", PATH, why));
        }
        let mut highest = self.version.lock();
        let Some(before) = before.filter(|_| highest.is_some()) else {
            return Ok(());
        };
        if version < before {
            let why = format!("the store was restored from a backup: its resourceVersion is {version} after {before}");
            self.restored.send_replace(Some(why.clone()));
            return Err(ApiError::blocked("GET", PATH, why));
        }
        *highest = (*highest).max(Some(version));
        Ok(())
    }

    /// Records the highest version from now on.
    pub(super) fn follow_store(self: &Arc<Self>) -> StoreFollower {
        *self.version.lock() = Some(0);
        self.restored.send_replace(None);
        StoreFollower(Arc::clone(self))
    }

    /// Highest version so far. To be read before a request, since answers may overtake each other.
    pub(super) fn last_store_version(&self) -> Option<u64> {
        *self.version.lock()
    }
}

// === impl StoreFollower ===

impl StoreFollower {
    /// Message once the store was restored from a backup.
    pub fn restored(&self) -> watch::Receiver<Option<String>> {
        self.0.restored.subscribe()
    }
}

impl Drop for StoreFollower {
    fn drop(&mut self) {
        *self.0.version.lock() = None;
    }
}
