//! Waiting for the end of somebody who keeps a mount in use: the kernel tells.

#![allow(
    unsafe_code,
    reason = "the runtime wants a promise for a descriptor that it is to watch"
)]

use std::{future::pending, os::fd::OwnedFd, time::Duration};

use futures::future::select_all;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

/// Processes that end together are looked at once. One that was gone before it could be waited for is not looked for all
/// the time either.
const GATHER: Duration = Duration::from_millis(100);

/// Returns when one of these processes has ended; for ever where there is none.
pub async fn wait_for_any_exit(pids: &[i32]) {
    if pids.is_empty() {
        return pending().await;
    }
    select_all(pids.iter().map(|pid| Box::pin(ends(*pid)))).await;
    sleep(GATHER).await;
}

async fn ends(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else {
        return pending().await;
    };
    let watched = match pidfd_open(pid, PidfdFlags::empty()) {
        // SAFETY: it owns its descriptor, always shows the same one, and is dropped only with the registration.
        Ok(process) => unsafe { AsyncFd::<OwnedFd>::register_with_interest(process, Interest::READABLE) },
        Err(rustix::io::Errno::SRCH) => return,
        // Then it is looked at after the pause.
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
    async fn the_first_to_end_is_told_and_nobody_before() {
        let mut processes = ["600", "601"].map(|seconds| Command::new("sleep").arg(seconds).spawn().unwrap());
        let pids = processes.each_ref().map(|process| process.id().cast_signed());
        let short = Duration::from_millis(300);
        assert!(timeout(short, wait_for_any_exit(&pids)).await.is_err(), "both live");
        processes[1].kill().unwrap();
        let told = timeout(Duration::from_secs(10), wait_for_any_exit(&pids)).await;
        for mut process in processes {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        told.unwrap();
        timeout(Duration::from_secs(10), wait_for_any_exit(&pids))
            .await
            .unwrap();
        assert!(timeout(short, wait_for_any_exit(&[])).await.is_err(), "nobody ends");
    }
}
