//! Interfaces of the agent to the outside: sockets, threads, a file and the kernel. A simulation replaces them to make runs
//! reproducible.

use crate::{
    api::Dial,
    journal::SimulatedDisk,
    node::{cri::CriService, kubelet_unit::ReadUnit, threads::Blocking, unmounts::UnmountBackend},
};

/// Replacements for sockets, threads, file and kernel. The default is the real ones.
#[derive(Clone, Default)]
pub struct Outside {
    /// Opens connections to API servers in memory, instead of TCP: those of the pods' and of the collector's client. They
    /// carry TLS if the URL is `https`.
    pub dial: Option<Dial>,
    /// The container runtime, instead of its socket.
    pub runtime: Option<CriService>,
    /// Stores the journal, instead of a file in the state directory.
    pub disk: Option<SimulatedDisk>,
    /// Reads the kubelet's unit, instead of systemd and its journal.
    pub kubelet_unit: Option<ReadUnit>,
    /// Unmounts file systems.
    pub unmounts: UnmountBackend,
    /// Runs blocking calls.
    pub blocking: Blocking,
}
