//! What a kubelet changes on a machine that is its own: the one that the tests run on is not.

use std::{fs, path::Path};

/// Settings of the kernel that a kubelet sets.
const SETTINGS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
];
/// Places that it makes, whatever it is told.
const PLACES: [&str; 4] = [
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/etc/kubernetes",
];

/// How it is with these.
pub struct Machine(Vec<String>);

// === impl Machine ===

impl Machine {
    /// As it is now.
    pub fn look() -> Self {
        let value = |path: &&str| fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let settings = SETTINGS.iter().map(|path| format!("{path}: {}", value(path).trim()));
        let entries = |path: &&str| fs::read_dir(Path::new(path)).map_or(0, Iterator::count);
        let places = PLACES.iter().map(|path| {
            let there = Path::new(path).exists();
            format!("{path}: there: {there}, entries: {}", entries(path))
        });
        Self(settings.chain(places).collect())
    }

    /// What is different later.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&later.0).filter(|(before, after)| before != after);
        pairs.map(|(before, after)| format!("{before} -> {after}")).collect()
    }
}
