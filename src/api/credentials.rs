//! Current credentials. They are read again when the server refuses them and when their files change.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::{Instant, timeout};

use super::{expiry::Expiry, kubeconfig};
use crate::node::threads::{Blocking, Threads};

/// Shortest interval between reads of refused credentials.
const MIN_RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Limit of a read, for files on a dead file server. Requests keep the previous credentials.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads that may hang at the same time.
const MAX_READS: usize = 2;

/// Builds a client from credentials.
type BuildSender<T> = Arc<dyn Fn(&kube::Config) -> Result<T, kube::Error> + Send + Sync>;

/// A client with the credentials of a kubeconfig.
pub(super) struct Credentials<T> {
    kubeconfig: PathBuf,
    build_sender: BuildSender<T>,
    threads: Threads,
    current: Mutex<Current<T>>,
}

struct Current<T> {
    sender: T,
    /// When they expire, if they show it.
    expires_at: Option<Timestamp>,
    read: Instant,
    /// Files of the credentials; `None` for those passed at start.
    files: Option<Vec<FileStamp>>,
}

/// Result of a read of the files.
struct ReadResult<T> {
    files: Vec<FileStamp>,
    sender: Result<(T, Option<Timestamp>), String>,
}

/// A file and the metadata that changes with it.
#[derive(Clone, PartialEq)]
struct FileStamp {
    path: PathBuf,
    metadata: Option<(u64, u64, u64, i64, i64)>,
}

// === impl Credentials ===

impl<T: Clone + Send + 'static> Credentials<T> {
    /// Starts with `config`, which was read from `kubeconfig`. `blocking` reads its files.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        build_sender: BuildSender<T>,
        blocking: Blocking,
    ) -> Result<Self, kube::Error> {
        let current = Current {
            sender: build_sender(config)?,
            expires_at: expires_at(config),
            read: Instant::now(),
            files: None,
        };
        Ok(Self {
            kubeconfig,
            build_sender,
            threads: Threads::with_slots(MAX_READS).with_blocking(blocking),
            current: Mutex::new(current),
        })
    }

    /// The current client.
    pub fn sender(&self) -> T {
        self.current().sender.clone()
    }

    /// When they expire, if they show it.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.current().expires_at
    }

    /// Reads refused credentials again, which may have been renewed. The caller retries the request.
    pub async fn reload_refused(&self) {
        {
            let mut current = self.current();
            if current.read.elapsed() < MIN_RELOAD_INTERVAL {
                return;
            }
            current.read = Instant::now();
        }
        self.reload("refused", None).await;
    }

    /// Reads the credentials again if their files have changed: the old ones may stay valid at a server that is gone.
    pub async fn reload_if_changed(&self) {
        let known = self.current().files.clone();
        self.reload("changed", known).await;
    }

    /// Reads them again, unless the files are unchanged.
    async fn reload(&self, cause: &'static str, known: Option<Vec<FileStamp>>) {
        let (path, build_sender) = (self.kubeconfig.clone(), Arc::clone(&self.build_sender));
        let is_unchanged =
            move || known.is_some_and(|files| files.iter().all(|file| FileStamp::read(&file.path) == *file));
        let read = move || (!is_unchanged()).then(|| ReadResult::read(&path, &*build_sender));
        let sender = match timeout(READ_TIMEOUT, self.threads.run_blocking(read)).await {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(ReadResult { files, sender }))) => sender.map(|sender| (files, sender)),
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err(format!("reading its files takes longer than {READ_TIMEOUT:?}")),
        };
        match sender {
            Ok((files, (sender, expires_at))) => {
                let mut current = self.current();
                // The first read follows the start and is no change.
                if current.files.replace(files).is_some() {
                    tracing::info!(cause, kubeconfig = ?self.kubeconfig, "Credentials reloaded");
                }
                (current.sender, current.expires_at) = (sender, expires_at);
            }
            Err(error) => {
                tracing::error!(cause, error, kubeconfig = ?self.kubeconfig, "Credentials cannot be reloaded");
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Current<T>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the credentials expire. `check` and the server report unreadable ones.
fn expires_at(config: &kube::Config) -> Option<Timestamp> {
    Expiry::of_config(config).ok().flatten().map(|expiry| expiry.expires_at)
}

// === impl ReadResult ===

impl<T> ReadResult<T> {
    fn read(path: &Path, build_sender: &dyn Fn(&kube::Config) -> Result<T, kube::Error>) -> Self {
        // Before the read, so that a later change is detected.
        let files = kubeconfig::credential_files(path);
        let files = files.iter().map(|file| FileStamp::read(file)).collect();
        let sender = kubeconfig::read_kubeconfig_here(path).and_then(|config| {
            let sender = build_sender(&config).map_err(|error| error.to_string())?;
            Ok((sender, expires_at(&config)))
        });
        Self { files, sender }
    }
}

// === impl FileStamp ===

impl FileStamp {
    fn read(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        Self {
            path: path.to_owned(),
            metadata: metadata.map(|it| (it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn files_that_hang_block_no_other_task_and_the_credentials_stay() {
        let dir = tempfile::tempdir().unwrap();
        // A read of a FIFO waits for a writer.
        let path = dir.path().join("kubeconfig");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let build_sender: BuildSender<u8> = Arc::new(|_| Ok(7));
        let credentials = Credentials::new(&config, path.clone(), build_sender, Blocking::OnThreads).unwrap();
        // The paused clock does not advance while threads run.
        tokio::join!(
            credentials.reload_if_changed(),
            advance(READ_TIMEOUT + Duration::from_millis(1))
        );
        assert_eq!(credentials.sender(), 7);
        // The read ends after the last writer. The next read must not hang.
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(writer);
    }
}
