//! The kind of a process by its name, whether it may mount, and whether it has exited.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use nix::errno::Errno;

use crate::node::{fault, procfs};

const NAME: &str = "kubelet";
/// The capability by which file systems are mounted.
const CAP_SYS_ADMIN: u32 = 21;
/// Programs that embed a kubelet or start one, each with the arguments that make it do so; without any it always does.
const WRAPPERS: [(&str, &[&[u8]]); 10] = [
    ("kubelite", &[]),
    ("k3s-server", &[]),
    ("k3s-agent", &[]),
    ("k3s", &[b"server", b"agent"]),
    ("rke2", &[b"server", b"agent"]),
    ("k0s", &[b"worker", b"controller"]),
    ("microshift", &[b"run"]),
    ("hyperkube", &[b"kubelet"]),
    ("edgecore", &[]),
    ("edged", &[]),
];

/// The kind of a process by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Kubelet,
    /// Its name only begins as a kubelet's: it is one if it has what only a kubelet has.
    Candidate,
    /// A program that runs a kubelet if it has one of these subcommands; with an empty list it always does.
    Wrapper(&'static [&'static [u8]]),
    /// Of any name: it listens on a kubelet's sockets.
    Listener,
}

/// The kind by its name. `None` if the process has exited; an unreadable name may be any.
pub(super) fn kind(dir: &Path) -> io::Result<Option<Kind>> {
    // A name has 15 bytes and a newline at most. Not `fs::read`, which asks for the size and the end, too.
    let mut name = [0; 32];
    let read = fs::File::open(dir.join("comm")).and_then(|mut file| file.read(&mut name));
    let read = match read {
        Ok(read) => read,
        Err(error) if matches!(fault::errno(&error), Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(name) = std::str::from_utf8(name[..read].trim_ascii_end()) else {
        return Ok(None);
    };
    if name == NAME {
        return Ok(Some(Kind::Kubelet));
    }
    // `kubelet-v1.36.3`, `kubelet-amd64`, `kubelet.real`, `.kubelet-wrapped`; but also drivers, approvers and exporters.
    if name.trim_start_matches('.').starts_with(NAME) {
        return Ok(Some(Kind::Candidate));
    }
    let wrapper = WRAPPERS.iter().find(|(wrapper, _)| name == *wrapper);
    Ok(wrapper.map(|(_, subcommands)| Kind::Wrapper(subcommands)))
}

/// Whether the process may mount in the agent's user namespace: it has `CAP_SYS_ADMIN` and is in that namespace. `true` if either
/// cannot be read.
pub(super) fn may_mount(proc: &Path, dir: &Path) -> bool {
    let status = fs::read(dir.join("status")).unwrap_or_default();
    let lacks = effective(&status).is_some_and(|capabilities| capabilities & (1 << CAP_SYS_ADMIN) == 0);
    let namespace = |process: &Path| procfs::namespace(process, "user");
    let (theirs, ours) = (namespace(dir), namespace(&proc.join("self")));
    let is_elsewhere = theirs.is_some() && ours.is_some() && theirs != ours;
    !lacks && !is_elsewhere
}

/// The effective capabilities. The kernel escapes a newline in the name, which comes before.
fn effective(status: &[u8]) -> Option<u64> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let capabilities = lines.find_map(|line| line.strip_prefix(b"CapEff:"))?;
    u64::from_str_radix(std::str::from_utf8(capabilities).ok()?.trim(), 16).ok()
}

/// Whether the process has no thread left, or only a zombie.
pub(super) fn has_exited(dir: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(dir.join("task")) else {
        return !dir.exists();
    };
    let is_zombie = || matches!(procfs::state(&procfs::text(&dir.join("stat"))), Some('Z' | 'X'));
    tasks.count() <= 1 && is_zombie()
}
