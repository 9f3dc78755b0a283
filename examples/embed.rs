//! Takes pods down without an API server, and shows each step. Killed and started again, it goes on where it was.
//!
//! `embed ENDPOINT KUBELET_ROOT CGROUP_ROOT POD_LOGS_DIR STATE_DIR POD_JSON...`, as root

#![allow(clippy::print_stdout, reason = "it is there to be watched")]

use std::{env, error::Error, fs, pin::pin};

use futures::{StreamExt as _, future::join_all};
use k8s_openapi::api::core::v1::Pod;
use pod_teardown::engine::{Engine, Settings, Teardown};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [endpoint, kubelet_root, cgroup_root, pod_logs_dir, state_dir, pods @ ..] = &args[..] else {
        return Err("usage: embed ENDPOINT KUBELET_ROOT CGROUP_ROOT POD_LOGS_DIR STATE_DIR POD_JSON...".into());
    };
    let mut settings = Settings::new(endpoint, kubelet_root);
    settings.cgroup_root.clone_from(cgroup_root);
    settings.pod_logs_dir = pod_logs_dir.into();
    settings.state_dir = Some(state_dir.into());
    let engine = Engine::start(settings).await?;
    let mut teardowns = engine.recover();
    println!("resumed: {}", teardowns.len());
    if teardowns.is_empty() {
        for path in pods {
            let pod: Pod = serde_json::from_slice(&fs::read(path)?)?;
            println!("{:#?}", engine.plan(&pod).await?);
            teardowns.push(engine.begin(&pod, None)?);
        }
    }
    join_all(teardowns.iter().map(follow)).await;
    Ok(())
}

/// Shows the steps of one pod until nothing is left of it.
async fn follow(teardown: &Teardown) {
    let mut progress = pin!(teardown.progress());
    let mut shown = 0;
    while let Some(trace) = progress.next().await {
        for span in trace.spans.iter().skip(shown) {
            println!("{} {} {}", teardown.pod(), span.step, span.what);
        }
        shown = trace.spans.len();
    }
    println!("{} {:?}", teardown.pod(), teardown.finished().await);
}
