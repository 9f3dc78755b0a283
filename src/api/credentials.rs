//! Credentials of the moment: they are read again when the server no longer takes them, and when their files change.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::expiry::Expiry;
use crate::config;

/// Credentials that are refused are not read again faster than this.
const RENEW_AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// Makes of credentials what sends requests with them.
type Make<T> = Box<dyn Fn(&kube::Config) -> Result<T, kube::Error> + Send + Sync>;

/// What sends requests, with the credentials that its kubeconfig holds.
pub(super) struct Credentials<T> {
    kubeconfig: PathBuf,
    make: Make<T>,
    current: Mutex<Current<T>>,
}

struct Current<T> {
    sender: T,
    /// When they end, where they tell.
    end: Option<Timestamp>,
    read: Instant,
    /// What the credentials were read from; not known yet of those that came with the settings.
    files: Option<Vec<Stamp>>,
}

/// A file, and by what a change of it shows.
#[derive(PartialEq)]
struct Stamp {
    path: PathBuf,
    seen: Option<(u64, u64, u64, i64, i64)>,
}

// === impl Credentials ===

impl<T: Clone> Credentials<T> {
    /// Begins with `config`, which was read from `kubeconfig`.
    pub fn new(config: &kube::Config, kubeconfig: PathBuf, make: Make<T>) -> Result<Self, kube::Error> {
        let current = Current {
            sender: make(config)?,
            end: end(config),
            read: Instant::now(),
            files: None,
        };
        Ok(Self {
            kubeconfig,
            make,
            current: Mutex::new(current),
        })
    }

    /// What sends requests at the moment.
    pub fn sender(&self) -> T {
        self.current().sender.clone()
    }

    /// When they end, where they tell.
    pub fn end(&self) -> Option<Timestamp> {
        self.current().end
    }

    /// Reads credentials again that were refused; somebody may have renewed them. The request is tried again by whoever
    /// asked.
    pub async fn renew(&self) {
        {
            let mut current = self.current();
            if current.read.elapsed() < RENEW_AT_MOST_EVERY {
                return;
            }
            current.read = Instant::now();
        }
        self.read_again("refused").await;
    }

    /// Reads the credentials again if a file changed that they come from: the old ones may be good for ever, at a server
    /// that has gone.
    pub async fn follow_files(&self) {
        let changed = match &self.current().files {
            None => true,
            Some(files) => files.iter().any(|file| Stamp::of(&file.path) != *file),
        };
        if changed {
            self.read_again("changed").await;
        }
    }

    async fn read_again(&self, because: &'static str) {
        // Before they are read: what changes meanwhile is seen the next time.
        let files = config::credential_files(&self.kubeconfig);
        let files = files.iter().map(|file| Stamp::of(file)).collect();
        let config = config::read_kubeconfig(&self.kubeconfig).await;
        let made = config.and_then(|config| {
            let sender = (self.make)(&config).map_err(|error| error.to_string())?;
            Ok((sender, end(&config)))
        });
        match made {
            Ok((sender, end)) => {
                let mut current = self.current();
                // The first time only whether they changed since the start was not known.
                if current.files.replace(files).is_some() {
                    tracing::info!(because, kubeconfig = ?self.kubeconfig, "Credentials have been read again");
                }
                (current.sender, current.end) = (sender, end);
            }
            Err(error) => {
                tracing::error!(because, error, kubeconfig = ?self.kubeconfig, "Credentials cannot be read again");
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Current<T>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What cannot be read of it is told by `check`, and by the server.
fn end(config: &kube::Config) -> Option<Timestamp> {
    Expiry::of(config).ok().flatten().map(|expiry| expiry.end)
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &Path) -> Self {
        let seen = std::fs::metadata(path).ok();
        Self {
            path: path.to_owned(),
            seen: seen.map(|it| (it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec())),
        }
    }
}
