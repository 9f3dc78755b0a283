//! Capabilities and user namespace of a process.

use std::{fs, path::Path};

/// The capability by which file systems are mounted.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether the process may mount in the agent's user namespace: it has `CAP_SYS_ADMIN` and is in that namespace. `true` if either
/// cannot be read.
pub(super) fn may_mount(proc: &Path, dir: &Path) -> bool {
    let status = fs::read(dir.join("status")).unwrap_or_default();
    let lacks = effective(&status).is_some_and(|capabilities| capabilities & (1 << CAP_SYS_ADMIN) == 0);
    let namespace = |dir: &Path| fs::read_link(dir.join("ns/user")).ok();
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
