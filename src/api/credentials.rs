//! Credentials of the moment: they are read again when the server no longer takes them, and when their files change.

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

/// Credentials that are refused are not read again faster than this.
const RENEW_AT_MOST_EVERY: Duration = Duration::from_secs(5);
/// Files that take longer hang, as on a server that is gone: requests go on with the credentials that are known.
const PATIENCE: Duration = Duration::from_secs(5);
/// Reads that may hang at a time.
const READS: usize = 2;

/// Makes of credentials what sends requests with them.
type Make<T> = Arc<dyn Fn(&kube::Config) -> Result<T, kube::Error> + Send + Sync>;

/// What sends requests, with the credentials that its kubeconfig holds.
pub(super) struct Credentials<T> {
    kubeconfig: PathBuf,
    make: Make<T>,
    threads: Threads,
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

/// What the files of credentials hold.
struct Found<T> {
    files: Vec<Stamp>,
    made: Result<(T, Option<Timestamp>), String>,
}

/// A file, and by what a change of it shows.
#[derive(Clone, PartialEq)]
struct Stamp {
    path: PathBuf,
    seen: Option<(u64, u64, u64, i64, i64)>,
}

// === impl Credentials ===

impl<T: Clone + Send + 'static> Credentials<T> {
    /// Begins with `config`, which was read from `kubeconfig`. Its files are read by `blocking`.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        make: Make<T>,
        blocking: Blocking,
    ) -> Result<Self, kube::Error> {
        let current = Current {
            sender: make(config)?,
            end: end(config),
            read: Instant::now(),
            files: None,
        };
        Ok(Self {
            kubeconfig,
            make,
            threads: Threads::with_slots(READS).with_blocking(blocking),
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
        self.read_again("refused", None).await;
    }

    /// Reads the credentials again if a file changed that they come from: the old ones may be good for ever, at a server
    /// that has gone.
    pub async fn follow_files(&self) {
        let known = self.current().files.clone();
        self.read_again("changed", known).await;
    }

    /// Reads them again, unless the files are still these.
    async fn read_again(&self, because: &'static str, known: Option<Vec<Stamp>>) {
        let (path, make) = (self.kubeconfig.clone(), Arc::clone(&self.make));
        let is_known = move || known.is_some_and(|files| files.iter().all(|file| Stamp::of(&file.path) == *file));
        let read = move || (!is_known()).then(|| Found::read(&path, &*make));
        let made = match timeout(PATIENCE, self.threads.run_blocking(read)).await {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(Found { files, made }))) => made.map(|made| (files, made)),
            Ok(Err(why)) => Err(why.to_string()),
            Err(_) => Err(format!("reading its files takes longer than {PATIENCE:?}")),
        };
        match made {
            Ok((files, (sender, end))) => {
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

// === impl Found ===

impl<T> Found<T> {
    fn read(path: &Path, make: &dyn Fn(&kube::Config) -> Result<T, kube::Error>) -> Self {
        // Before they are read: what changes meanwhile is seen the next time.
        let files = kubeconfig::credential_files(path);
        let files = files.iter().map(|file| Stamp::of(file)).collect();
        let made = kubeconfig::read_kubeconfig_here(path).and_then(|config| {
            let sender = make(&config).map_err(|error| error.to_string())?;
            Ok((sender, end(&config)))
        });
        Self { files, made }
    }
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

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn files_that_hang_block_no_other_task_and_the_credentials_stay() {
        let dir = tempfile::tempdir().unwrap();
        // A read of it waits for a writer.
        let path = dir.path().join("kubeconfig");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let make: Make<u8> = Arc::new(|_| Ok(7));
        let credentials = Credentials::new(&config, path.clone(), make, Blocking::OnThreads).unwrap();
        // Time does not pass by itself while threads are at work.
        tokio::join!(credentials.follow_files(), advance(PATIENCE + Duration::from_millis(1)));
        assert_eq!(credentials.sender(), 7);
        // The read ends once there is no writer any more. The next one must find nothing that hangs.
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(writer);
    }
}
