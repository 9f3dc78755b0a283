//! Current credentials. They are read again when the server refuses them and when their files change.

use std::{
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{connection_pool::ConnectionPool, kubeconfig};
use crate::{
    node::threads::{Blocking, Threads},
    why::Why,
};

/// Shortest interval between reads of refused credentials.
const MIN_RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Limit of a read, for files on a dead file server. Requests keep the previous credentials.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Why refused credentials are read again.
const REFUSED: &str = "refused";
/// Reads that may hang at the same time.
const MAX_READS: usize = 2;

/// Makes a pool for connections with credentials.
pub(super) type BuildPool = Arc<dyn Fn(&kube::Config) -> Result<ConnectionPool, kube::Error> + Send + Sync>;

/// Connections with the credentials of a kubeconfig.
pub(super) struct Credentials {
    kubeconfig: PathBuf,
    build_pool: BuildPool,
    threads: Threads,
    current: Mutex<Current>,
    /// One read at a time: all requests of a broken connection fail together.
    reading: tokio::sync::Mutex<()>,
}

struct Current {
    pool: Arc<ConnectionPool>,
    read: Instant,
    /// `None` for credentials passed at start.
    files: Option<Files>,
    /// Why they could not be read last, until they can be.
    error: Option<Why>,
}

/// The files of the credentials, with hashes of their content; `None` for a file that cannot be read.
type Files = Vec<(PathBuf, Option<u64>)>;

// === impl Credentials ===

impl Credentials {
    /// Starts with `config`, which was read from `kubeconfig`. `blocking` reads its files.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        build_pool: BuildPool,
        blocking: Blocking,
    ) -> Result<Self, kube::Error> {
        let current = Current {
            pool: Arc::new(build_pool(config)?),
            read: Instant::now(),
            files: None,
            error: None,
        };
        Ok(Self {
            kubeconfig,
            build_pool,
            threads: Threads::with_slots(MAX_READS).with_blocking(blocking),
            current: Mutex::new(current),
            reading: tokio::sync::Mutex::default(),
        })
    }

    /// The pool for connections with the current credentials.
    pub fn pool(&self) -> Arc<ConnectionPool> {
        Arc::clone(&self.current.lock().pool)
    }

    /// Reads refused credentials again, which may have been renewed. The caller retries the request.
    pub async fn reload_refused(&self) {
        {
            let mut current = self.current.lock();
            if current.read.elapsed() < MIN_RELOAD_INTERVAL {
                return;
            }
            current.read = Instant::now();
        }
        self.reload(REFUSED).await;
    }

    /// Reads the credentials again if their files have changed: the old ones may stay valid at a server that is gone.
    pub async fn reload_if_changed(&self) {
        self.reload("changed").await;
    }

    /// Reads them again, unless the files are unchanged, or waits for a read in progress. Credentials of a command may differ
    /// each time.
    async fn reload(&self, cause: &'static str) {
        let Ok(_reading) = self.reading.try_lock() else {
            drop(self.reading.lock().await);
            return;
        };
        let (path, build_pool) = (self.kubeconfig.clone(), Arc::clone(&self.build_pool));
        let (known, is_refused) = (self.current.lock().files.clone(), cause == REFUSED);
        let read = move || read_changed(&path, known.as_ref(), is_refused, &build_pool);
        let read = match timeout(READ_TIMEOUT, self.threads.run_blocking(read)).await {
            Ok(Ok(None)) => {
                self.current.lock().error = None;
                return;
            }
            Ok(Ok(Some((files, pool)))) => pool.map(|pool| (files, pool)),
            Ok(Err(why)) => Err(Why::new(why)),
            Err(_) => Err(format!("reading its files takes longer than {READ_TIMEOUT:?}").into()),
        };
        match read {
            Ok((files, pool)) => {
                let mut current = self.current.lock();
                // The first read follows the start and is no change.
                if current.files.replace(files).is_some() {
                    tracing::info!(cause, kubeconfig = ?self.kubeconfig, "Credentials reloaded");
                }
                (current.pool, current.error) = (Arc::new(pool), None);
            }
            Err(error) => {
                let known = self.current.lock().error.replace(error.clone());
                if known.as_ref() != Some(&error) {
                    tracing::error!(cause, %error, kubeconfig = ?self.kubeconfig, "Credentials cannot be reloaded");
                }
            }
        }
    }
}

/// Reads the files, and makes a pool; `None` if their content is as `known`.
fn read_changed(
    path: &Path,
    known: Option<&Files>,
    is_refused: bool,
    build_pool: &BuildPool,
) -> Option<(Files, Result<ConnectionPool, Why>)> {
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    // Before the read, so that a later change is detected.
    let files = kubeconfig::credential_files(path).into_iter().map(|path| {
        let content = std::fs::read(&path).ok();
        (path, content.map(|content| hash.hash_one(content)))
    });
    let files: Files = files.collect();
    let is_same = known == Some(&files) && files.iter().all(|(_, content)| content.is_some());
    if is_same && !is_refused {
        return None;
    }
    let config = kubeconfig::read_kubeconfig_here(path);
    // A command may return others each time.
    let has_command = config.as_ref().is_ok_and(|config| config.auth_info.exec.is_some());
    if is_same && !has_command {
        return None;
    }
    let pool = config.and_then(|config| build_pool(&config).map_err(Why::new));
    Some((files, pool))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use nix::{sys::stat::Mode, unistd::mkfifo};
    use tokio::time::advance;

    use super::*;
    use crate::api::connection_pool::Evidence;

    #[tokio::test(start_paused = true)]
    async fn credentials_are_rebuilt_once_for_each_changed_content_however_many_requests_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let write = |token: &str| {
            let text = testbed::api::kubeconfig("http://127.0.0.1:1", None, "a", token);
            std::fs::write(&path, text).unwrap();
        };
        write("one");
        let config = kubeconfig::read_kubeconfig_here(&path).unwrap();
        let built = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&built);
        let build_pool: BuildPool = Arc::new(move |config| {
            counter.fetch_add(1, Ordering::SeqCst);
            ConnectionPool::new(config, Evidence::Cluster(Arc::default()), None)
        });
        let credentials = Credentials::new(&config, path.clone(), build_pool, Blocking::Inline).unwrap();
        let fail_together = async || {
            join_all((0..24).map(|_| credentials.reload_if_changed())).await;
            join_all((0..24).map(|_| credentials.reload_refused())).await;
            advance(MIN_RELOAD_INTERVAL).await;
            join_all((0..24).map(|_| credentials.reload_refused())).await;
            built.load(Ordering::SeqCst)
        };
        // The content at the start is unknown.
        assert_eq!(fail_together().await, 2);
        write("one");
        assert_eq!(fail_together().await, 2, "the file was only touched");
        write("second");
        assert_eq!(fail_together().await, 3);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(fail_together().await, 3);
        write("third token");
        assert_eq!(fail_together().await, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_hang_block_no_other_task_and_the_credentials_stay() {
        let dir = tempfile::tempdir().unwrap();
        // A read of a FIFO waits for a writer.
        let path = dir.path().join("kubeconfig");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let build_pool: BuildPool =
            Arc::new(|config| ConnectionPool::new(config, Evidence::Cluster(Arc::default()), None));
        let credentials = Credentials::new(&config, path.clone(), build_pool, Blocking::OnThreads).unwrap();
        let before = credentials.pool();
        // The paused clock does not advance while threads run.
        tokio::join!(
            credentials.reload_if_changed(),
            advance(READ_TIMEOUT + Duration::from_millis(1))
        );
        assert!(Arc::ptr_eq(&credentials.pool(), &before));
        // The read ends after the last writer. The next read must not hang.
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        drop(writer);
    }
}
