//! Waits until a holder of a mount exits, by pidfd.

#![allow(
    unsafe_code,
    reason = "tokio requires that the descriptor stays open while it is registered"
)]

use std::{future::pending, os::fd::OwnedFd, time::Duration};

use futures::future::select_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

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
    let Some(pid) = Pid::from_raw(pid) else {
        return pending().await;
    };
    let watched = match pidfd_open(pid, PidfdFlags::empty()) {
        // SAFETY: it owns its descriptor, always shows the same one, and is dropped only with the registration.
        Ok(process) => unsafe { AsyncFd::<OwnedFd>::register_with_interest(process, Interest::READABLE) },
        Err(rustix::io::Errno::SRCH) => return,
        // Pend: the caller retries after its pause.
        Err(_) => return pending().await,
    };
    match watched {
        Ok(process) => drop(process.readable().await),
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
        let exited = timeout(Duration::from_secs(10), wait_for_any_exit(&pids)).await;
        for mut process in processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        exited.unwrap();
        timeout(Duration::from_secs(10), wait_for_any_exit(&pids))
            .await
            .unwrap();
        assert!(
            timeout(short, wait_for_any_exit(&[])).await.is_err(),
            "no process exits"
        );
    }
}
