//! Who unmounts.

use std::{path::Path, sync::Arc};

/// Who unmounts the topmost mount on a path; `INVAL` where there is none.
pub type Unmounter = Arc<dyn Fn(&Path) -> rustix::io::Result<()> + Send + Sync>;

/// How unmounts are done.
#[derive(Clone, Default)]
pub enum Unmounts {
    /// By the kernel.
    #[default]
    Kernel,
    /// By whoever keeps the mount table of a simulation, where nothing is really mounted.
    By(Unmounter),
}
