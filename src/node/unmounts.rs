//! Who unmounts, when by force, and what hangs meanwhile.

use std::{path::Path, sync::Arc, time::Duration};

mod in_flight;

pub use in_flight::{Call, CallError, CallsInFlight, Hang};

/// UnmountBackend that take longer are left to themselves, and told.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who unmounts the topmost mount on a path; `INVAL` where there is none.
pub type Unmounter = Arc<dyn Fn(&Path) -> nix::Result<()> + Send + Sync>;

/// How unmounts are done.
#[derive(Clone, Default)]
pub enum UnmountBackend {
    /// By the kernel.
    #[default]
    Kernel,
    /// By whoever keeps the mount table of a simulation, where nothing is really mounted.
    Simulated(Unmounter),
}

/// Whether the connection to a server that is gone may be cut, so that its mount can go (`--force-unmount`). What was
/// written and not sent is lost then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ForceUnmount {
    /// A mount waits for its server.
    #[default]
    Never,
    /// Where the server does not answer, or the kernel calls it gone.
    DeadServer,
}

/// How unmounts are done, and those that hang; all clones know of the same ones.
#[derive(Clone)]
pub struct Unmounting {
    /// Who does it.
    pub backend: UnmountBackend,
    /// When by force.
    pub force: ForceUnmount,
    /// What has not come back.
    pub in_flight: Arc<CallsInFlight>,
    /// How long one is waited for.
    pub patience: Duration,
}

// === impl Unmounting ===

impl Default for Unmounting {
    fn default() -> Self {
        Self {
            backend: UnmountBackend::default(),
            force: ForceUnmount::default(),
            in_flight: Arc::default(),
            patience: PATIENCE,
        }
    }
}
