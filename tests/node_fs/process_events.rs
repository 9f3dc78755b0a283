//! The kernel's reports of process starts, also after another listener has ended them.

use std::{collections::HashSet, fs, process::Command, time::Duration};

use futures::StreamExt as _;
use nix::{
    libc::{CN_IDX_PROC, CN_VAL_PROC, PROC_CN_MCAST_IGNORE},
    sys::socket::{MsgFlags, send},
};
use pod_teardown::node::process_events::{Execs, KernelEvents, ProcessEvents as _};
use tokio::time::timeout;

use crate::space::block_on;

const PATIENCE: Duration = Duration::from_secs(60);
/// `NETLINK_CONNECTOR`.
const CONNECTOR: &str = "11";

/// Ends the events of all listeners of this process. Before Linux 6.6, any listener ends those of all processes so.
fn end_events() {
    let sockets = fs::read_to_string("/proc/self/net/netlink").unwrap();
    let of_connector: HashSet<String> = sockets
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1] == CONNECTOR)
        .map(|fields| format!("socket:[{}]", fields[fields.len() - 1]))
        .collect();
    let words = [40, 3, 0, 0, CN_IDX_PROC, CN_VAL_PROC, 0, 7, 4, PROC_CN_MCAST_IGNORE];
    let request: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    for entry in fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap) {
        let is_connector = fs::read_link(entry.path()).is_ok_and(|link| of_connector.contains(link.to_str().unwrap()));
        if let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok())
            && is_connector
        {
            send(fd, &request, MsgFlags::empty()).unwrap();
        }
    }
}

#[test]
fn events_that_another_listener_has_ended_are_missed_and_requested_again() {
    block_on(async {
        let mut events = KernelEvents.execs().unwrap();
        end_events();
        let lost = async { while events.next().await.unwrap() != Execs::Lost {} };
        timeout(PATIENCE, lost).await.expect("the loss is reported");
        let mut child = Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let reported =
            async { while !matches!(events.next().await.unwrap(), Execs::Pids(pids) if pids.contains(&pid)) {} };
        timeout(PATIENCE, reported).await.expect("the start is reported");
        child.wait().unwrap();
    });
}
