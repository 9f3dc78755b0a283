//! How the agent reaches what is outside of this process. On a machine these are sockets, threads, a file and the
//! kernel; a simulation puts its own world in their place, so that one run is like the other.

use crate::{
    api::Dial,
    journal::Disk,
    node::{cri::CriService, threads::Blocking, unmounts::Unmounts},
};

/// What takes the place of sockets, threads, file and kernel; where nothing is said, they are what they are.
#[derive(Clone, Default)]
pub struct Outside {
    /// Opens connections to the API server, instead of TCP. TLS goes over them if the server's URL is `https`.
    pub dial: Option<Dial>,
    /// Answers for the container runtime, instead of whoever listens on its socket.
    pub runtime: Option<CriService>,
    /// Holds the journal, instead of a file in the state directory.
    pub disk: Option<Disk>,
    /// Who unmounts.
    pub unmounts: Unmounts,
    /// Who does work that blocks.
    pub blocking: Blocking,
}
