//! The cluster that connections lead to, and how far its store is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The cluster that connections lead to: that of the first one.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    uid: Mutex<Option<String>>,
    /// The highest version that its store was seen at, while somebody follows it.
    version: Mutex<Option<u64>>,
    put_back: watch::Sender<Option<String>>,
}

/// While it is held, no connection is used that leads to an older state of the store than was seen before.
#[derive(Debug)]
pub struct StoreFollowed(Arc<Cluster>);

// === impl Cluster ===

impl Cluster {
    /// Whether this is the UID of its namespace kube-system.
    pub(super) fn judge(&self, uid: &str) -> Result<(), String> {
        let mut known = self.uid.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_with(|| uid.to_owned());
        if known == uid {
            Ok(())
        } else {
            Err(format!(
                "this is another cluster: its namespace kube-system has the UID {uid}, where it was {known} before; if that \
                 is meant, start the agent again"
            ))
        }
    }

    /// From now on it is remembered how far the store is.
    pub(super) fn follow_store(self: &Arc<Self>) -> StoreFollowed {
        *self.version() = Some(0);
        self.put_back.send_replace(None);
        StoreFollowed(Arc::clone(self))
    }

    /// How far its store was seen to be, to be taken before it is asked: answers may overtake each other.
    pub(super) fn store_was_at(&self) -> Option<u64> {
        *self.version()
    }

    /// Its store shows itself at this version, and was at `before` when it was asked.
    pub(super) fn store_is_at(&self, version: u64, before: Option<u64>) -> Result<(), String> {
        let mut highest = self.version();
        match before.filter(|_| highest.is_some()) {
            Some(known) if version < known => {
                let why =
                    format!("the store was restored from a backup: its resourceVersion is {version} after {known}");
                self.put_back.send_replace(Some(why.clone()));
                Err(why)
            }
            Some(_) => {
                *highest = (*highest).max(Some(version));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn version(&self) -> MutexGuard<'_, Option<u64>> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl StoreFollowed ===

impl StoreFollowed {
    /// Why the store must have been put back, once it has.
    pub fn put_back(&self) -> watch::Receiver<Option<String>> {
        self.0.put_back.subscribe()
    }
}

impl Drop for StoreFollowed {
    fn drop(&mut self) {
        *self.0.version() = None;
    }
}
