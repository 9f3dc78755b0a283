//! Flags of this node's kubelet when it was last seen.

use super::{
    Journal,
    file::KUBELET,
    writer::{Row, Write},
};
use crate::node::kubelet_process::start::KubeletStart;

/// The row in the journal.
pub(super) fn row(kubelet: Option<&KubeletStart>) -> Row {
    Row::Node(KUBELET, serde_json::to_string(&kubelet).unwrap_or_default())
}

// === impl Journal ===

impl Journal {
    /// Flags of this node's kubelet when it was last seen.
    pub fn kubelet(&self) -> Option<KubeletStart> {
        self.lock().kubelet.clone()
    }

    /// Records the flags. They are durable later.
    pub fn set_kubelet(&self, kubelet: KubeletStart) {
        let mut state = self.lock();
        let kubelet = Some(kubelet);
        if state.kubelet != kubelet {
            self.send(Write::Row(row(kubelet.as_ref())));
            state.kubelet = kubelet;
        }
    }
}
