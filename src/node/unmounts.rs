//! How unmounts are executed and forced, and which ones hang.

use std::{path::Path, sync::Arc, time::Duration};

mod in_flight;

pub use in_flight::{Call, CallError, CallsInFlight};

/// Timeout of an unmount. After that it is abandoned and reported.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Unmounts the topmost mount on a path; `EINVAL` if there is none.
pub type Unmounter = Arc<dyn Fn(&Path) -> nix::Result<()> + Send + Sync>;

/// What executes unmounts.
#[derive(Clone, Default)]
pub enum UnmountBackend {
    /// The kernel.
    #[default]
    Kernel,
    /// A simulation's mount table, where nothing is really mounted.
    Simulated(Unmounter),
}

/// Whether to cut the connection to an unresponsive server, so that its mount can be removed (`--force-unmount`). Unsent
/// writes are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "agent", derive(clap::ValueEnum))]
pub enum ForceUnmount {
    /// Its pod waits until the server answers again.
    #[default]
    Never,
    /// The connection is cut after some seconds. Data that was written and not sent is lost.
    DeadServer,
}

/// Settings of unmounts, and those that hang. Clones share the latter.
#[derive(Clone)]
pub struct Unmounting {
    /// What executes them.
    pub backend: UnmountBackend,
    /// When unmounts are forced.
    pub force: ForceUnmount,
    /// Calls that have not returned.
    pub in_flight: Arc<CallsInFlight>,
    /// Timeout of one call.
    pub call_timeout: Duration,
}

// === impl Unmounting ===

impl Default for Unmounting {
    fn default() -> Self {
        Self {
            backend: UnmountBackend::default(),
            force: ForceUnmount::default(),
            in_flight: Arc::default(),
            call_timeout: UNMOUNT_TIMEOUT,
        }
    }
}
