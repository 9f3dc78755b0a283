//! Detects changes of the mounts below a pod's directory.

use std::{future::pending, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    model::pod::PodView,
    node::{mounts::Mounts, pod_dir::PodDir, threads::Threads},
    teardown::{context::Context, locate},
};

/// Changes within this time are one change.
const GATHER: Duration = Duration::from_millis(100);

/// The mounts below a pod's directory, over all attempts.
pub(super) struct PodMounts {
    dir: PodDir,
    mounts: Arc<Mounts>,
    reads: Threads,
    /// The mounts at the last check.
    seen: Option<Option<Vec<PathBuf>>>,
}

// === impl PodMounts ===

impl PodMounts {
    /// `None` if the pod's UID cannot be the name of a directory.
    pub fn for_pod(context: &Context, view: &PodView) -> Option<Self> {
        Some(Self {
            dir: locate::pod_dir(context, view).ok()?,
            mounts: Arc::clone(&context.node.storage.mounts),
            reads: context.node.reads.clone(),
            seen: None,
        })
    }

    /// Returns when the mounts differ from those at the last check, at once if they already do.
    pub async fn wait_for_change(&mut self) {
        let Ok(mut watch) = self.mounts.watch() else {
            // The pause between attempts ends the wait.
            return pending().await;
        };
        loop {
            let now = self.get_pod().await;
            if self.seen.replace(now.clone()).is_some_and(|seen| seen != now) {
                return;
            }
            watch.changed().await;
            sleep(GATHER).await;
        }
    }

    /// `None` if the mount table cannot be read.
    async fn get_pod(&self) -> Option<Vec<PathBuf>> {
        let (dir, mounts) = (self.dir.clone(), Arc::clone(&self.mounts));
        let read = self
            .reads
            .run_blocking(move || Some(dir.mounted(&*mounts.read().ok()?)));
        read.await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tokio::time::timeout;

    use super::*;
    use crate::node::kubelet_root::KubeletRoot;

    // The paused clock does not advance while a thread reads the table.
    #[tokio::test(start_paused = true)]
    async fn unmount_between_two_waits_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pods/u1")).unwrap();
        let root = KubeletRoot::resolve(dir.path()).unwrap();
        let pod = PodDir::new(&root, "u1").unwrap();
        let at = root.pods().join("u1/volumes/kubernetes.io~iscsi/lun");
        let table = dir.path().join("mountinfo");
        let line = |at: &Path| format!("9 1 0:9 / {} rw - tmpfs none rw\n", at.display());
        fs::write(&table, line(&at)).unwrap();
        let mut mounts = PodMounts {
            dir: pod,
            mounts: Arc::new(Mounts::new(&table, root.pods())),
            reads: Threads::default(),
            seen: None,
        };
        let short = Duration::from_millis(300);
        assert!(
            timeout(short, mounts.wait_for_change()).await.is_err(),
            "it is the first check"
        );
        fs::write(&table, line(Path::new("/elsewhere"))).unwrap();
        mounts.wait_for_change().await;
        assert!(
            timeout(short, mounts.wait_for_change()).await.is_err(),
            "nothing has changed since"
        );
    }
}
