//! Waits until a holder of a mount exits, by pidfd.

use std::{future::pending, time::Duration};

use futures::future::select_all;
use nix::errno::Errno;
use tokio::time::sleep;

use crate::node::{fault::errno, process_exit};

/// Processes that exit together are handled together. Also limits retries for a process that exited before it could be
/// watched.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Returns when one of these processes has exited. Pends forever without any.
pub async fn wait_for_any_exit(pids: &[i32]) {
    if pids.is_empty() {
        return pending().await;
    }
    select_all(pids.iter().map(|pid| Box::pin(wait_for_exit(*pid)))).await;
    sleep(SETTLE_TIME).await;
}

async fn wait_for_exit(pid: i32) {
    match process_exit::wait_for_exit(pid) {
        Ok(exit) => exit.await,
        Err(error) if errno(&error) == Errno::ESRCH => {}
        // Pend: the caller retries after its pause.
        Err(_) => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn first_exit_is_reported_and_nothing_before() {
        let mut processes = ["600", "601"].map(|seconds| Command::new("sleep").arg(seconds).spawn().unwrap());
        let pids = processes.each_ref().map(|process| process.id().cast_signed());
        let short = Duration::from_millis(300);
        assert!(timeout(short, wait_for_any_exit(&pids)).await.is_err(), "both live");
        processes[1].kill().unwrap();
        let exited = timeout(Duration::from_secs(60), wait_for_any_exit(&pids)).await;
        for mut process in processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        exited.unwrap();
        timeout(Duration::from_secs(60), wait_for_any_exit(&pids))
            .await
            .unwrap();
        assert!(
            timeout(short, wait_for_any_exit(&[])).await.is_err(),
            "no process exits"
        );
    }
}
