//! Drivers registered with the kubelet: every socket below `plugins_registry` is asked for its driver.
//!
//! The kubelet's next step, `NotifyRegistrationStatus`, is never sent.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::stream::{self, StreamExt as _};
use rustix::fs::FileType;
use tokio::{net::UnixStream, time::timeout};

use super::{
    DriverUnavailable, Kind,
    call::CallRequest,
    csi::Csi,
    dra::{Dra, SERVICES},
    wire::pluginregistration::{InfoRequest, registration_client::RegistrationClient},
};
use crate::node::{
    dirs::Dir,
    effects::Effects,
    fault::{Cause, Fault},
    grpc::{Call, GrpcError},
};

/// The directory's name below the kubelet's root directory.
pub const DIRECTORY: &str = "plugins_registry";

/// Timeout of the registration call, connecting included. The kubelet uses 1 s for the call.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of sockets asked at a time: more than a node has drivers, fewer than the descriptor limit.
const MAX_CONCURRENT: usize = 64;
/// Number of unresponsive sockets named in messages.
const MAX_NAMED: usize = 3;
/// Maximum nesting. Drivers use one or two levels.
const MAX_DEPTH: usize = 8;

/// When a socket was created, and its path.
type Socket = ((i64, u32), PathBuf);

/// Registered drivers, from one read of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The directory that was read.
    pub dir: PathBuf,
    /// Drivers that answered, newest socket first.
    pub registered: Vec<Registered>,
    /// Errors of sockets that did not answer. A refused connection means that the driver is not running.
    pub unresponsive: Vec<GrpcError>,
    /// Parts of the directory that could not be read.
    pub faults: Vec<Fault>,
}

/// A driver's registration answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Type of the plugin; `None` if it is not relevant for teardown.
    pub kind: Option<Kind>,
    /// Its name.
    pub name: String,
    /// Path of the socket that serves its calls.
    pub endpoint: PathBuf,
    /// API versions for CSI, names of gRPC services for DRA.
    pub versions: Vec<String>,
    /// Path of its registration socket.
    pub socket: PathBuf,
}

// === impl Registry ===

impl Registry {
    /// Asks every socket below `dir` in parallel. A missing directory means that there are no drivers.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub async fn read(dir: &Path, effects: &Effects) -> Result<Self, Fault> {
        let path = dir.to_owned();
        let read = effects.run_blocking(move |_| sockets(&path)).await;
        let (mut sockets, faults) = read.unwrap_or_else(|not_done| Err(Fault::new("read", dir, not_done)))?;
        sockets.sort_unstable_by(|a, b| b.cmp(a));
        let mut registry = Self {
            dir: dir.to_owned(),
            registered: Vec::new(),
            unresponsive: Vec::new(),
            faults,
        };
        let answers = stream::iter(sockets).map(|(_, socket)| ask(socket));
        let mut answers = answers.buffered(MAX_CONCURRENT);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(registered) => registry.registered.push(registered),
                Err(error) => registry.unresponsive.push(error),
            }
        }
        Ok(registry)
    }

    /// The CSI driver with this name; of several, the newest that accepts connections.
    ///
    /// # Errors
    /// When there is none, or none that supports CSI 1.
    pub async fn csi(&self, driver: &str) -> Result<Csi, DriverUnavailable> {
        let endpoint = |it: &Registered| {
            let known = it.versions.iter().any(|version| is_v1(version));
            known.then(|| Csi::new(driver, &it.endpoint))
        };
        self.latest(Kind::Csi, driver, endpoint).await
    }

    /// The plugin of this DRA driver; of several, the newest that accepts connections.
    ///
    /// # Errors
    /// When there is none, or none with a known service.
    pub async fn dra(&self, driver: &str) -> Result<Dra, DriverUnavailable> {
        let plugin = |it: &Registered| {
            let mut versions = it.versions.iter();
            let service = versions.find_map(|name| SERVICES.into_iter().find(|it| it == name))?;
            Some(Dra::new(driver, &it.endpoint, service))
        };
        self.latest(Kind::Dra, driver, plugin).await
    }

    /// Whether every driver that runs has answered.
    pub fn is_complete(&self) -> bool {
        self.faults.is_empty() && self.unresponsive.iter().all(GrpcError::is_unreachable)
    }

    async fn latest<T>(
        &self,
        kind: Kind,
        driver: &str,
        understood: impl Fn(&Registered) -> Option<T>,
    ) -> Result<T, DriverUnavailable> {
        let mut why = Vec::new();
        let is_wanted = |it: &&Registered| it.kind == Some(kind) && it.name == driver;
        for it in self.registered.iter().filter(is_wanted) {
            match (understood(it), check_connection(&it.endpoint).await) {
                (Some(found), Ok(())) => return Ok(found),
                (Some(_), Err(error)) => why.push(format!("its socket {:?} does not answer: {error}", it.endpoint)),
                (None, _) => why.push(format!("it supports only {:?}", it.versions)),
            }
        }
        if why.is_empty() {
            why.push(format!(
                "none of the {} drivers that answer has this name",
                self.registered.len()
            ));
            why.extend(self.unresponsive.iter().take(MAX_NAMED).map(ToString::to_string));
            if let Some(more) = self.unresponsive.len().checked_sub(MAX_NAMED + 1) {
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

/// Asks a registration socket for its driver.
async fn ask(socket: PathBuf) -> Result<Registered, GrpcError> {
    let request = CallRequest {
        call: Call::to_driver("GetInfo", &socket.to_string_lossy(), ""),
        socket: &socket,
        deadline: REGISTRATION_TIMEOUT,
    };
    let answer = request.send(None, async |channel| {
        RegistrationClient::new(channel).get_info(InfoRequest {}).await
    });
    let info = answer.await?;
    Ok(Registered {
        kind: match info.r#type.as_str() {
            "CSIPlugin" => Some(Kind::Csi),
            "DRAPlugin" => Some(Kind::Dra),
            _ => None,
        },
        name: info.name,
        endpoint: match info.endpoint.is_empty() {
            true => socket.clone(),
            false => info.endpoint.into(),
        },
        versions: info.supported_versions,
        socket,
    })
}

async fn check_connection(socket: &Path) -> std::io::Result<()> {
    timeout(REGISTRATION_TIMEOUT, UnixStream::connect(socket)).await??;
    Ok(())
}

/// Whether a CSI version is 1.x.
fn is_v1(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split('.').next() == Some("1")
}

/// All sockets at and below `dir`, except hidden ones, and the faults of entries that cannot be read. Links are not followed.
fn sockets(dir: &Path) -> Result<(Vec<Socket>, Vec<Fault>), Fault> {
    let (mut sockets, mut faults) = (Vec::new(), Vec::new());
    if let Some(dir) = Dir::open(dir)? {
        enter(&dir, MAX_DEPTH, &mut sockets, &mut faults)?;
    }
    Ok((sockets, faults))
}

fn enter(dir: &Dir, depth: usize, sockets: &mut Vec<Socket>, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    for name in dir.names()?.iter().filter(|name| !name.as_bytes().starts_with(b".")) {
        let path = dir.path().join(name);
        let read = dir.stat(name).and_then(|seen| match seen {
            Some(seen) if seen.kind == FileType::Socket => {
                sockets.push((seen.modified, path));
                Ok(())
            }
            Some(seen) if seen.kind == FileType::Directory && depth == 0 => {
                Err(Fault::new("read", path, Cause::TooDeep))
            }
            Some(seen) if seen.kind == FileType::Directory => match dir.open_below(name)? {
                Some(inner) => enter(&inner, depth - 1, sockets, faults),
                None => Ok(()),
            },
            _ => Ok(()),
        });
        faults.extend(read.err());
    }
    Ok(())
}
