//! Whether what is mounted for a pod has changed: the kernel tells, whoever has done it.

use std::{future::pending, path::PathBuf, sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{
    model::pod::PodView,
    node::{mounts::Mounts, pod_dir::PodDir, threads::Threads},
    teardown::{context::Context, places},
};

/// Mounts that change together are looked at once.
const GATHER: Duration = Duration::from_millis(100);

/// The mounts below a pod's directory, from attempt to attempt.
pub(super) struct PodMounts {
    dir: PodDir,
    mounts: Arc<Mounts>,
    reads: Threads,
    /// What was mounted when somebody last looked.
    seen: Option<Option<Vec<PathBuf>>>,
}

// === impl PodMounts ===

impl PodMounts {
    /// Those of this pod; none if its UID cannot name a directory.
    pub fn of(context: &Context, view: &PodView) -> Option<Self> {
        Some(Self {
            dir: places::dir(context, view).ok()?,
            mounts: Arc::clone(&context.storage.mounts),
            reads: context.reads.clone(),
            seen: None,
        })
    }

    /// Returns when something else is mounted there than when it was looked at last, be it long ago. Other pods come and go
    /// all the time.
    pub async fn change(&mut self) {
        let Ok(mut watch) = self.mounts.watch() else {
            // Then it is looked at after the pause.
            return pending().await;
        };
        loop {
            let now = self.now().await;
            if self.seen.replace(now.clone()).is_some_and(|seen| seen != now) {
                return;
            }
            watch.changed().await;
            sleep(GATHER).await;
        }
    }

    /// What is mounted there now; nothing if that cannot be told.
    async fn now(&self) -> Option<Vec<PathBuf>> {
        let (dir, mounts) = (self.dir.clone(), Arc::clone(&self.mounts));
        let look = self
            .reads
            .run_blocking(move || Some(dir.mounted(&*mounts.read().ok()?)));
        look.await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tokio::time::timeout;

    use super::*;
    use crate::node::kubelet_root::KubeletRoot;

    #[tokio::test]
    async fn what_was_unmounted_while_nobody_waited_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pods/u1")).unwrap();
        let root = KubeletRoot::resolve(dir.path()).unwrap();
        let pod = PodDir::new(&root, "u1").unwrap();
        let at = root.pods().join("u1/volumes/kubernetes.io~iscsi/lun");
        let table = dir.path().join("mountinfo");
        let lies = |at: &Path| format!("9 1 0:9 / {} rw - tmpfs none rw\n", at.display());
        fs::write(&table, lies(&at)).unwrap();
        let mut mounts = PodMounts {
            dir: pod,
            mounts: Arc::new(Mounts::new(&table, root.pods())),
            reads: Threads::default(),
            seen: None,
        };
        let short = Duration::from_millis(300);
        assert!(timeout(short, mounts.change()).await.is_err(), "it is the first look");
        fs::write(&table, lies(Path::new("/elsewhere"))).unwrap();
        mounts.change().await;
        assert!(
            timeout(short, mounts.change()).await.is_err(),
            "nothing has changed since"
        );
    }
}
