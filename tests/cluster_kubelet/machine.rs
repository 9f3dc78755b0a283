//! Checks that a kubelet leaves no changes on the test machine.

use std::{fs, path::Path};

/// Sysctls that a kubelet sets.
const SETTINGS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
];
/// Directories that it creates with any settings.
const DIRECTORIES: [&str; 4] = [
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/etc/kubernetes",
];

/// State of these.
pub struct Machine(Vec<String>);

impl Machine {
    /// The present state.
    pub fn look() -> Self {
        let value = |path: &&str| fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        let settings = SETTINGS.iter().map(|path| format!("{path}: {}", value(path).trim()));
        let entries = |path: &&str| fs::read_dir(Path::new(path)).map_or(0, Iterator::count);
        let places = DIRECTORIES.iter().map(|path| {
            let there = Path::new(path).exists();
            format!("{path}: there: {there}, entries: {}", entries(path))
        });
        Self(settings.chain(places).collect())
    }

    /// Differences of a later state.
    pub fn changes(&self, later: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&later.0).filter(|(before, after)| before != after);
        pairs.map(|(before, after)| format!("{before} -> {after}")).collect()
    }
}
