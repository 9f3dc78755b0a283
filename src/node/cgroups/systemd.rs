//! systemd, as far as it makes and stops the slices of pods: asked over D-Bus.
//!
//! zbus speaks D-Bus on the runtime that is there anyway. Nothing is connected before the first slice is to be stopped.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use tokio::{sync::Mutex, time::timeout};
use zbus::{
    Connection, DynamicType, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant, connection::Builder,
    message::Type,
};

use super::PodCgroup;
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault},
};

const VERB: &str = "stop slice";
const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Nothing of that name is loaded, or not any more.
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A slice with nothing in it stops in some milliseconds; the kubelet waits as long.
const LIMIT: Duration = Duration::from_secs(30);
/// Whoever listens lets others in at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A client of systemd; all clones share one connection.
#[derive(Debug, Clone, Default)]
pub struct Systemd {
    /// Address of the message bus, where it is not the system's.
    bus: Option<Arc<str>>,
    connection: Arc<Mutex<Option<Connection>>>,
}

// === impl Systemd ===

impl Systemd {
    /// That of this machine.
    pub fn of_this_machine() -> Self {
        Self::default()
    }

    /// Its version; for `check`.
    pub async fn version(&self) -> Result<String, String> {
        let asked = async {
            let connection = self.connection().await?;
            let properties = Some("org.freedesktop.DBus.Properties");
            let which = (MANAGER, "Version");
            let answer = connection.call_method(Some(SERVICE), OBJECT, properties, "Get", &which);
            let version: OwnedVariant = answer.await?.body().deserialize()?;
            String::try_from(version)
        };
        match timeout(LIMIT, asked).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {LIMIT:?}")),
        }
    }

    /// Stops a pod's slice and waits until that is done. One that is not loaded is stopped.
    pub(super) async fn stop(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Fault> {
        let (path, unit) = (pod.path(), pod.unit());
        if !effects
            .allow(&Effect::new(VERB, &path))
            .map_err(|held| Fault::new(VERB, path, held))?
        {
            return Ok(Outcome::Withheld);
        }
        let stopped = timeout(LIMIT, effects.as_long_as_allowed(self.stop_unit(unit))).await;
        checkpoint::after(VERB, &path);
        let cause = match stopped {
            Ok(Ok(Ok(outcome))) => return Ok(outcome),
            Ok(Ok(Err(error))) => Cause::Systemd(format!(
                "systemd cannot be asked over D-Bus: {error}; look at `systemctl status dbus`, and whether \
                 --cgroup-driver is the kubelet's"
            )),
            Ok(Err(held)) => held.into(),
            Err(_) => {
                // Whatever has become of it: the next attempt begins anew.
                self.connection.lock().await.take();
                Cause::Systemd(format!(
                    "systemd has not stopped it within {LIMIT:?}; look at `systemctl list-jobs` and \
                     `systemctl status {unit}`"
                ))
            }
        };
        Err(Fault::new(VERB, path, cause))
    }

    /// Once more where the connection broke: the bus may have been started anew since it was used last.
    async fn stop_unit(&self, unit: &str) -> zbus::Result<Outcome> {
        match stop_over(&self.connection().await?, unit).await {
            Err(error) if !is_answer(&error) => {
                self.connection.lock().await.take();
                stop_over(&self.connection().await?, unit).await
            }
            result => result,
        }
    }

    async fn connection(&self) -> zbus::Result<Connection> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let bus = match &self.bus {
            None => Builder::system(),
            Some(address) => Builder::address(&**address),
        };
        let new = timeout(CONNECT_LIMIT, bus.build())
            .await
            .unwrap_or_else(|_| Err(zbus::Error::Failure(format!("no answer within {CONNECT_LIMIT:?}"))))?;
        // It tells of jobs only if somebody wants to hear of them.
        call(&new, "Subscribe", &()).await?;
        *kept = Some(new.clone());
        Ok(new)
    }
}

/// Whether it was said by systemd, or by the bus on its behalf: the connection is a good one.
fn is_answer(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(..) | zbus::Error::FDO(_))
}

/// Asks for the stop of a unit and waits for the end of that job.
async fn stop_over(connection: &Connection, unit: &str) -> zbus::Result<Outcome> {
    // Any slice can be loaded, also one that is gone: its name says all.
    match call(connection, "GetUnit", &(unit,)).await {
        Ok(_) => {}
        Err(zbus::Error::MethodError(name, ..)) if name == NO_SUCH_UNIT => return Ok(Outcome::Nothing),
        Err(error) => return Err(error),
    }
    // Before the question, so that an end that comes at once is heard.
    let ends = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(SERVICE)
        .interface(MANAGER)
        .member("JobRemoved")
        .arg(2, unit)
        .build()?;
    let mut ends = MessageStream::for_match_rule(ends, connection, None).await?;
    let job = call(connection, "StopUnit", &(unit, "replace")).await?;
    let job: OwnedObjectPath = job.body().deserialize()?;
    loop {
        let end = match ends.next().await {
            Some(end) => end?,
            None => return Err(zbus::Error::Failure("the connection has ended".to_owned())),
        };
        let (_, ended, _, result): (u32, OwnedObjectPath, String, String) = end.body().deserialize()?;
        if ended == job {
            if result != "done" {
                // What is left shows when its directories are removed.
                tracing::warn!(unit, result, "systemd has not stopped a slice well");
            }
            break;
        }
    }
    // One that has failed stays loaded without that. It is gone if it has not.
    match call(connection, "ResetFailedUnit", &(unit,)).await {
        Err(error) if !is_answer(&error) => Err(error),
        Ok(_) | Err(_) => Ok(Outcome::Done),
    }
}

async fn call<B>(connection: &Connection, method: &str, arguments: &B) -> zbus::Result<Message>
where
    B: serde::Serialize + DynamicType,
{
    connection
        .call_method(Some(SERVICE), OBJECT, Some(MANAGER), method, arguments)
        .await
}

#[cfg(test)]
mod tests;
