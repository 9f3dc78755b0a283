//! Stops and restarts units, finds the unit of a process and reads the configuration of a service, over systemd's D-Bus API.
//!
//! zbus uses the existing tokio runtime, and connects at the first call.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Mutex, time::timeout};
use zbus::{
    Connection, MatchRule, MessageStream,
    connection::Builder,
    message::Type,
    zvariant::{self, DynamicType, OwnedObjectPath, OwnedValue},
};

use super::effects::Outcome;
use crate::{model::foreign::ForeignText, why::Why};

pub mod environment_file;
mod unit_state;

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Object and interface of most calls.
const ON_MANAGER: (&str, &str) = (OBJECT, MANAGER);
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";
const SERVICE_INTERFACE: &str = "org.freedesktop.systemd1.Service";
/// No unit with this name is loaded.
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// systemd answers immediately.
const LIMIT: Duration = Duration::from_secs(30);
/// The bus accepts connections immediately.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A client of systemd, by default on the system bus. Clones share one connection.
#[derive(Debug, Clone, Default)]
pub struct Systemd {
    /// Address of another message bus.
    bus: Option<Arc<str>>,
    connection: Arc<Mutex<Option<Connection>>>,
}

/// Name, description, three states, the unit that it follows, path, and its job.
type ListedUnit = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);

// === impl Systemd ===

impl Systemd {
    /// The version of systemd, for `check`.
    pub async fn version(&self) -> Result<String, Why> {
        self.with_timeout(async { property(&self.connection().await?, OBJECT, MANAGER, "Version").await })
            .await
    }

    /// The service whose main process this is, if any.
    pub async fn service_of_process(&self, pid: i32) -> Result<Option<String>, Why> {
        self.with_timeout(async {
            let connection = self.connection().await?;
            let pid = u32::try_from(pid).unwrap_or_default();
            let unit: OwnedObjectPath = match call(&connection, ON_MANAGER, "GetUnitByPID", &(pid,)).await {
                Err(zbus::Error::MethodError(..)) => return Ok(None),
                unit => unit?,
            };
            let name: String = property(&connection, &unit, UNIT_INTERFACE, "Id").await?;
            if !name.ends_with(".service") {
                return Ok(None);
            }
            let main: u32 = property(&connection, &unit, SERVICE_INTERFACE, "MainPID").await?;
            Ok((main == pid).then_some(name))
        })
        .await
    }

    /// The service that will start its main process again after this one has exited, if any.
    pub async fn service_that_restarts(&self, pid: i32) -> Result<Option<String>, Why> {
        self.with_timeout(async {
            let connection = self.connection().await?;
            let states = (["auto-restart"],);
            let units: Vec<ListedUnit> = call(&connection, ON_MANAGER, "ListUnitsFiltered", &states).await?;
            for (name, .., path, _, _, _) in units {
                let last: u32 = property(&connection, &path, SERVICE_INTERFACE, "ExecMainPID").await?;
                if u32::try_from(pid) == Ok(last) {
                    return Ok(Some(name));
                }
            }
            Ok(None)
        })
        .await
    }

    async fn with_timeout<T>(&self, request: impl Future<Output = zbus::Result<T>>) -> Result<T, Why> {
        match timeout(LIMIT, request).await {
            Ok(answer) => answer.map_err(|error| Why::new(ForeignText::new(&error.to_string()))),
            Err(_) => Err(format!("no answer within {LIMIT:?}").into()),
        }
    }

    /// Stops a unit and waits without a limit for the job to finish. A unit that is not loaded counts as stopped. Retried
    /// once if the connection broke: the bus may have restarted since its last use. `mode` is systemd's: with `replace`, the job replaces
    /// another one of the unit; with `fail` it fails then.
    pub async fn stop_unit(&self, unit: &str, mode: &str) -> zbus::Result<Outcome> {
        match stop_on(&self.connection().await?, unit, mode).await {
            Err(error) if !is_answer(&error) => {
                self.disconnect().await;
                stop_on(&self.connection().await?, unit, mode).await
            }
            result => result,
        }
    }

    /// Drops the connection. The next call opens a new one.
    pub async fn disconnect(&self) {
        self.connection.lock().await.take();
    }

    async fn connection(&self) -> zbus::Result<Connection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let bus = match &self.bus {
            None => Builder::system()?,
            Some(address) => Builder::address(&**address)?,
        };
        let late = || Err(zbus::Error::Failure(format!("no answer within {CONNECT_LIMIT:?}")));
        let new = timeout(CONNECT_LIMIT, bus.build()).await.unwrap_or_else(|_| late())?;
        // systemd sends job signals only to subscribers.
        call::<()>(&new, ON_MANAGER, "Subscribe", &()).await?;
        *kept = Some(new.clone());
        Ok(new)
    }
}

/// Whether systemd, or the bus on its behalf, answered: the connection works.
fn is_answer(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(..) | zbus::Error::FDO(_))
}

/// Stops a unit and waits for the job's end.
async fn stop_on(connection: &Connection, unit: &str, mode: &str) -> zbus::Result<Outcome> {
    // systemd can load any slice by its name, even one that no longer exists.
    match call::<OwnedObjectPath>(connection, ON_MANAGER, "GetUnit", &(unit,)).await {
        Ok(_) => {}
        Err(zbus::Error::MethodError(name, ..)) if name == NO_SUCH_UNIT => return Ok(Outcome::Nothing),
        Err(error) => return Err(error),
    }
    let result = run_stop_job(connection, unit, mode).await?;
    if result != "done" {
        // Remaining processes show when its cgroups are removed.
        tracing::warn!(unit, result, "Unit stop failed in systemd");
    }
    // A failed unit stays loaded until it is reset. Any other one is already unloaded.
    match call(connection, ON_MANAGER, "ResetFailedUnit", &(unit,)).await {
        Err(error) if !is_answer(&error) => Err(error),
        Ok(()) | Err(_) => Ok(Outcome::Done),
    }
}

/// Starts a job that stops a unit, and waits for its result.
async fn run_stop_job(connection: &Connection, unit: &str, mode: &str) -> zbus::Result<String> {
    // Subscribe before the call, so that no signal is missed.
    let ends = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(SERVICE)?
        .interface(MANAGER)?
        .member("JobRemoved")?
        .arg(2, unit)?
        .build();
    let mut ends = MessageStream::for_match_rule(ends, connection, None).await?;
    let job: OwnedObjectPath = call(connection, ON_MANAGER, "StopUnit", &(unit, mode)).await?;
    while let Some(end) = ends.next().await {
        let (_, ended, _, result): (u32, OwnedObjectPath, String, String) = end?.body().deserialize()?;
        if ended == job {
            return Ok(result);
        }
    }
    Err(zbus::Error::Failure("the connection was closed".to_owned()))
}

/// The answer to a method's call on this object and interface.
async fn call<T: DeserializeOwned + zvariant::Type>(
    connection: &Connection,
    (path, interface): (&str, &str),
    method: &str,
    arguments: &(impl Serialize + DynamicType),
) -> zbus::Result<T> {
    let answer = connection.call_method(Some(SERVICE), path, Some(interface), method, arguments);
    answer.await?.body().deserialize()
}

async fn property<T>(connection: &Connection, path: &str, interface: &str, name: &str) -> zbus::Result<T>
where
    T: TryFrom<OwnedValue, Error = zvariant::Error>,
{
    let value: OwnedValue = call(connection, (path, PROPERTIES), "Get", &(interface, name)).await?;
    Ok(value.try_into()?)
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) mod double;
}
