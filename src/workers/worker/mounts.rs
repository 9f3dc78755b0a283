//! Whether what is mounted for a pod has changed: the kernel tells, whoever has done it.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::{context::Context, pod::PodView, teardown::places};

/// Mounts that change together are looked at once.
const GATHER: Duration = Duration::from_millis(100);

/// Returns when something else is mounted in the pod's directory than was at first. Other pods come and go all the time.
pub(super) async fn of_pod_change(context: Arc<Context>, view: Arc<PodView>) {
    let mounts = &context.storage.mounts;
    if let (Ok(dir), Ok(mut watch)) = (places::dir(&context, &view), mounts.watch()) {
        let mounted = async || {
            let (dir, mounts) = (dir.clone(), Arc::clone(mounts));
            let look = context.reads.work(move || Some(dir.mounted(&*mounts.read().ok()?)));
            look.await.ok().flatten()
        };
        let before = mounted().await;
        loop {
            watch.changed().await;
            sleep(GATHER).await;
            if mounted().await != before {
                return;
            }
        }
    }
    // Then it is looked at after the pause.
    std::future::pending::<()>().await;
}
