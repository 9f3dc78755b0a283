//! Who registered at the kubelet: every socket below its `plugins_registry` is asked who it is.
//!
//! The kubelet's own next step, telling the driver that it was taken in, is never taken here.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::stream::{self, StreamExt as _};
use tokio::{net::UnixStream, time::timeout};

use super::{
    call::Way,
    csi::Csi,
    dra::{Dra, Service},
    kind::Kind,
    unavailable::DriverUnavailable,
    wire::pluginregistration::{InfoRequest, PluginInfo, registration_client::RegistrationClient},
};
use crate::node::{
    effects::Effects,
    fault::Fault,
    grpc::{Call, GrpcError},
};

mod walk;

use walk::Socket;

/// The directory's name below the kubelet's root.
pub const DIRECTORY: &str = "plugins_registry";

/// How long a driver may take to say who it is, connecting included; the kubelet gives it 1 s for the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sockets that are asked at a time: more than any node has drivers, less than the agent may open.
const AT_ONCE: usize = 64;
/// Sockets that do not answer of which so many are told by name.
const TOLD: usize = 3;

/// All drivers that registered, as of one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The directory that was looked at.
    pub dir: PathBuf,
    /// Those that answered, the latest first.
    pub registered: Vec<Registered>,
    /// Sockets that did not answer.
    pub unresponsive: Vec<UnresponsiveSocket>,
    /// Parts of the directory that could not be read.
    pub faults: Vec<Fault>,
}

/// What registrars have answered, by socket. A driver that starts again makes a socket of its own, which is asked again.
#[derive(Debug, Default)]
pub struct Registrars(Mutex<HashMap<Socket, Registered>>);

/// A driver as it introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// What it is a driver of.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The socket that takes its calls.
    pub endpoint: PathBuf,
    /// Versions of its API for CSI, names of gRPC services for DRA.
    pub versions: Vec<String>,
    /// The socket by which it registered.
    pub socket: PathBuf,
}

/// A socket that does not say who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnresponsiveSocket {
    /// The socket.
    pub socket: PathBuf,
    /// Why: a refused connection is that of a driver that is gone.
    pub error: GrpcError,
}

// === impl Registry ===

impl Registry {
    /// Asks every socket below `dir` who it is, side by side. A directory that is not there is that of a kubelet without
    /// drivers.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub async fn read(dir: &Path, effects: &Effects) -> Result<Self, Fault> {
        Registrars::default().read(dir, effects).await
    }

    async fn read_with(dir: &Path, effects: &Effects, registrars: &Registrars) -> Result<Self, Fault> {
        let path = dir.to_owned();
        let (mut sockets, faults) = effects
            .run_blocking(move |_| walk::sockets(&path))
            .await
            .unwrap_or_else(|not_done| Err(Fault::new("read", dir, not_done)))?;
        sockets.sort_unstable_by(|a, b| (b.since, &b.path).cmp(&(a.since, &a.path)));
        let mut registry = Self {
            dir: dir.to_owned(),
            registered: Vec::new(),
            unresponsive: Vec::new(),
            faults,
        };
        registrars.keep(&sockets);
        let mut answers = stream::iter(sockets)
            .map(|socket| registrars.ask(socket))
            .buffered(AT_ONCE);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(registered) => registry.registered.push(registered),
                Err(unresponsive) => registry.unresponsive.push(unresponsive),
            }
        }
        Ok(registry)
    }

    /// The CSI driver of this name; of several the latest that takes connections.
    ///
    /// # Errors
    /// When there is none, or none that speaks CSI 1.
    pub async fn csi(&self, driver: &str) -> Result<Csi, DriverUnavailable> {
        let endpoint = |it: &Registered| {
            let known = it.versions.iter().any(|version| is_first(version));
            known.then(|| Csi::new(driver, &it.endpoint))
        };
        self.latest(Kind::Csi, driver, endpoint).await
    }

    /// The plugin of this DRA driver; of several the latest that takes connections.
    ///
    /// # Errors
    /// When there is none, or none with a service that is known here.
    pub async fn dra(&self, driver: &str) -> Result<Dra, DriverUnavailable> {
        let plugin = |it: &Registered| {
            let service = it.versions.iter().find_map(|name| Service::named(name))?;
            Some(Dra::new(driver, &it.endpoint, service))
        };
        self.latest(Kind::Dra, driver, plugin).await
    }

    async fn latest<T>(
        &self,
        kind: Kind,
        driver: &str,
        understood: impl Fn(&Registered) -> Option<T>,
    ) -> Result<T, DriverUnavailable> {
        let mut why = Vec::new();
        for it in self.registered.iter().filter(|it| it.kind == kind && it.name == driver) {
            match (understood(it), connects(&it.endpoint).await) {
                (Some(found), Ok(())) => return Ok(found),
                (Some(_), Err(error)) => why.push(format!("its socket {:?} does not answer: {error}", it.endpoint)),
                (None, _) => why.push(format!("it speaks only {:?}", it.versions)),
            }
        }
        if why.is_empty() {
            why.push(format!(
                "none of {} drivers that answer has this name",
                self.registered.len()
            ));
            why.extend(
                self.unresponsive
                    .iter()
                    .take(TOLD)
                    .map(|unresponsive| unresponsive.error.to_string()),
            );
            if let Some(more) = self.unresponsive.len().checked_sub(TOLD + 1) {
                why.push(format!("{} more sockets do not answer", more + 1));
            }
        }
        Err(DriverUnavailable {
            kind,
            driver: driver.to_owned(),
            why: why.join("; "),
            registry_dir: self.dir.clone(),
        })
    }
}

// === impl Registrars ===

impl Registrars {
    /// As [`Registry::read`], but a socket that has answered is not asked again. It is still checked that a process listens on
    /// it.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub async fn read(&self, dir: &Path, effects: &Effects) -> Result<Registry, Fault> {
        Registry::read_with(dir, effects, self).await
    }

    async fn ask(&self, socket: Socket) -> Result<Registered, UnresponsiveSocket> {
        let known = self.known().get(&socket).cloned();
        if let Some(known) = known
            && connects(&socket.path).await.is_ok()
        {
            return Ok(known);
        }
        let answer = ask(&socket.path).await;
        let mut all = self.known();
        match &answer {
            Ok(registered) => drop(all.insert(socket, registered.clone())),
            Err(_) => drop(all.remove(&socket)),
        }
        answer
    }

    /// Forgets all sockets but these.
    fn keep(&self, sockets: &[Socket]) {
        self.known().retain(|known, _| sockets.contains(known));
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Socket, Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who listens on a socket.
async fn ask(path: &Path) -> Result<Registered, UnresponsiveSocket> {
    let way = Way {
        call: Call::to_driver("GetInfo", &path.to_string_lossy(), ""),
        socket: path,
        deadline: PATIENCE,
    };
    let answer = way.look(InfoRequest {}, async |channel, request| {
        RegistrationClient::new(channel).get_info(request).await
    });
    match answer.await {
        Ok(info) => Ok(Registered::from_info(info, path.to_owned())),
        Err(error) => Err(UnresponsiveSocket {
            socket: path.to_owned(),
            error,
        }),
    }
}

async fn connects(socket: &Path) -> std::io::Result<()> {
    timeout(PATIENCE, UnixStream::connect(socket)).await??;
    Ok(())
}

/// Whether a version of CSI is a 1.x.
fn is_first(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split('.').next() == Some("1")
}

// === impl Registered ===

impl Registered {
    fn from_info(info: PluginInfo, socket: PathBuf) -> Self {
        let endpoint = if info.endpoint.is_empty() {
            socket.clone()
        } else {
            info.endpoint.into()
        };
        Self {
            kind: match info.r#type.as_str() {
                "CSIPlugin" => Kind::Csi,
                "DRAPlugin" => Kind::Dra,
                _ => Kind::Other,
            },
            name: info.name,
            endpoint,
            versions: info.supported_versions,
            socket,
        }
    }
}
