//! Flags of this node's kubelet when it was last seen.

use super::{Journal, entries::kubelet_row, writer::Write};
use crate::node::kubelet_process::flags::KubeletFlags;

// === impl Journal ===

impl Journal {
    /// Flags of this node's kubelet when it was last seen.
    pub fn kubelet(&self) -> Option<KubeletFlags> {
        self.lock().kubelet.clone()
    }

    /// Records the flags. They are durable later.
    pub fn set_kubelet(&self, kubelet: KubeletFlags) {
        let mut state = self.lock();
        let kubelet = Some(kubelet);
        if state.kubelet != kubelet {
            self.send(Write::Row(kubelet_row(kubelet.as_ref())));
            state.kubelet = kubelet;
        }
    }
}
