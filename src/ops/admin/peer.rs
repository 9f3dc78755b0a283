//! The client of an admin request.

use std::fmt;

use tokio::net::unix::UCred;

/// User and process of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    uid: u32,
    pid: Option<i32>,
}

// === impl Peer ===

impl From<UCred> for Peer {
    fn from(credentials: UCred) -> Self {
        Self {
            uid: credentials.uid(),
            pid: credentials.pid(),
        }
    }
}

impl Peer {
    /// Root and the agent's user are allowed, regardless of the socket's mode.
    pub fn is_allowed(self) -> bool {
        self.uid == 0 || self.uid == nix::unistd::geteuid().as_raw()
    }

    /// The user, for records that outlive the process.
    pub fn user(self) -> String {
        match self.uid {
            0 => "root".to_owned(),
            uid => format!("uid {uid}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{}, pid {pid}", self.user()),
            None => write!(f, "{}, pid unknown", self.user()),
        }
    }
}
