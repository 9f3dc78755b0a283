//! A node with a CSI driver that really mounts, and an API server with `volumesInUse`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures::future::{BoxFuture, FutureExt as _};
use pod_teardown::{
    node::{effects::Effects, fault::Fault},
    teardown::{
        boundary::{ApiFailure, PodApi},
        volumes::{storage::Storage, unstage_unused_volumes},
    },
};
use testbed::drivers::{
    CsiCall, CsiDriver,
    csi_volumes::{Published, Pv, stage_and_publish, staging},
};

use crate::space::{Space, UID, block_on, in_own_namespace, soon, tear_down_volumes, write};

pub const DRIVER: &str = "csi.example.com";
pub const PV: Pv<'_> = Pv {
    name: "pv-1",
    driver: DRIVER,
    handle: "vol/1",
    staged: true,
};
pub const IN_USE: &str = "kubernetes.io/csi/csi.example.com^vol/1";

/// A volume of another name, which tests that run meanwhile cannot see, and its name in `volumesInUse`.
pub fn another_volume(name: &'static str) -> (Pv<'static>, String) {
    let handle = format!("vol/{name}").leak();
    let volume = Pv { name, handle, ..PV };
    (volume, format!("kubernetes.io/csi/{DRIVER}^{handle}"))
}

/// An API server with `volumesInUse`.
#[derive(Clone, Default)]
pub struct Known {
    pub in_use: Arc<Mutex<Vec<String>>>,
    pub volume: Option<(String, String)>,
}

impl Known {
    pub fn with(volumes: &[&str]) -> Self {
        Self {
            in_use: Arc::new(Mutex::new(volumes.iter().map(|&it| it.to_owned()).collect())),
            volume: None,
        }
    }

    pub fn has_in_use(&self) -> Vec<String> {
        self.in_use.lock().unwrap().clone()
    }
}

impl PodApi for Known {
    fn persistent_volume<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>, ApiFailure>> {
        async { Ok(self.volume.clone()) }.boxed()
    }

    fn volumes_in_use(&self) -> BoxFuture<'_, Result<Vec<String>, ApiFailure>> {
        async { Ok(self.has_in_use()) }.boxed()
    }

    fn remove_volume_in_use<'a>(&'a self, volume: &'a str) -> BoxFuture<'a, Result<(), ApiFailure>> {
        self.in_use.lock().unwrap().retain(|it| it != volume);
        async { Ok(()) }.boxed()
    }
}

/// A node with a driver and an API server.
pub struct Node<'a> {
    pub space: &'a Space,
    pub driver: CsiDriver,
    pub known: Known,
    pub storage: Arc<Storage>,
}

impl Node<'_> {
    pub fn publish(&self) -> Published {
        let published = stage_and_publish(&self.space.root, UID, &PV).unwrap();
        write(&published.target.join("data"), "precious");
        published
    }

    /// Restarts the agent: it keeps only what it has recorded.
    pub fn restart(&mut self) {
        self.storage = Arc::new(Storage {
            journal: self.storage.journal.clone(),
            ..Arc::into_inner(storage(self.space, &self.known)).unwrap()
        });
    }

    pub async fn tear_down(&self) -> Result<(), Vec<Fault>> {
        tear_down_volumes(&self.space.pod, &self.storage).await
    }

    pub async fn is_torn_down(&self) {
        self.tear_down().await.unwrap();
    }

    /// The same if a holder has just exited.
    pub async fn is_torn_down_soon(&self) {
        soon(async || self.tear_down().await).await;
    }

    pub async fn unused_is_torn_down(&self) {
        assert_eq!(
            unstage_unused_volumes(&self.storage, &mut |_| true).await,
            BTreeMap::new()
        );
    }

    /// The error about volumes that seem unused.
    pub async fn unused_fails(&self) -> String {
        let failed = unstage_unused_volumes(&self.storage, &mut |_| true).await;
        let faults = failed.into_values().flatten().map(|fault| fault.to_string());
        faults.collect::<Vec<_>>().join("\n")
    }

    pub async fn fails(&self) -> String {
        let faults = self.tear_down().await.unwrap_err();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    pub fn calls(&self) -> Vec<&'static str> {
        let name = |call: CsiCall| match call {
            CsiCall::Unpublish { .. } => "unpublish",
            CsiCall::Unstage { .. } => "unstage",
            CsiCall::Capabilities => "capabilities",
        };
        self.driver.effects().into_iter().map(name).collect()
    }

    pub fn assert_clean(&self) {
        assert_eq!(self.known.has_in_use(), Vec::<String>::new());
        let staged = staging(&self.space.root, &PV);
        assert!(!staged.parent().unwrap().exists(), "{staged:?}");
    }
}

/// Storage of an agent that has just started.
fn storage(space: &Space, known: &Known) -> Arc<Storage> {
    let storage = Arc::into_inner(space.storage(&Effects::ungated())).unwrap();
    Arc::new(Storage {
        api: Arc::new(known.clone()),
        ..storage
    })
}

/// Runs a test on a node whose API server lists the volume as in use.
pub fn on_node(known: Known, test: impl AsyncFnOnce(&mut Node<'_>) + Send + 'static) {
    in_own_namespace(move |space| {
        block_on(async {
            let driver = CsiDriver::start(&space.root, DRIVER).unwrap();
            let mut node = Node {
                space,
                driver,
                storage: storage(space, &known),
                known,
            };
            test(&mut node).await;
        });
    });
}
