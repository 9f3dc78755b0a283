//! Who unmounts, when by force, and what hangs meanwhile.

use std::{path::Path, sync::Arc, time::Duration};

mod under_way;

pub use under_way::{Call, Hang, NotBack, UnderWay};

/// Unmounts that take longer are left to themselves, and told.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who unmounts the topmost mount on a path; `INVAL` where there is none.
pub type Unmounter = Arc<dyn Fn(&Path) -> nix::Result<()> + Send + Sync>;

/// How unmounts are done.
#[derive(Clone, Default)]
pub enum Unmounts {
    /// By the kernel.
    #[default]
    Kernel,
    /// By whoever keeps the mount table of a simulation, where nothing is really mounted.
    By(Unmounter),
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
    pub by: Unmounts,
    /// When by force.
    pub force: ForceUnmount,
    /// What has not come back.
    pub under_way: Arc<UnderWay>,
    /// How long one is waited for.
    pub patience: Duration,
}

// === impl Unmounting ===

impl Default for Unmounting {
    fn default() -> Self {
        Self {
            by: Unmounts::default(),
            force: ForceUnmount::default(),
            under_way: Arc::default(),
            patience: PATIENCE,
        }
    }
}
