//! How systemd has configured a service: its command line and its environment.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use zbus::{
    Connection,
    zvariant::{DeserializeValue, OwnedObjectPath, Type},
};

use super::{PROPERTIES, SERVICE, Systemd, call, environment_file};

/// Configuration of a service as systemd has loaded it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceUnit {
    /// The unit file.
    pub fragment: PathBuf,
    /// Its drop-ins.
    pub drop_ins: Vec<PathBuf>,
    /// Whether one of these files has changed since systemd has loaded it.
    pub needs_reload: bool,
    /// Arguments of `ExecStart=`, the program first.
    pub command: Vec<String>,
    /// `Environment=` as `NAME=VALUE`.
    pub environment: Vec<String>,
    /// `EnvironmentFile=`, and whether it may be missing.
    pub environment_files: Vec<(PathBuf, bool)>,
}

/// One element of `ExecStart`: path, arguments, and state that is not used here.
type ExecStart = (String, Vec<String>, bool, u64, u64, u64, u64, u32, i32, i32);

// === impl Systemd ===

impl Systemd {
    /// The configuration of a service; `None` if systemd knows no such unit.
    ///
    /// # Errors
    /// A message if systemd does not answer.
    pub async fn service(&self, unit: &str) -> Result<Option<ServiceUnit>, String> {
        self.with_timeout(async {
            let connection = self.connection().await?;
            // GetUnit knows only loaded units, and an inactive one may be unloaded.
            let path: OwnedObjectPath = call(&connection, "LoadUnit", &(unit,)).await?.body().deserialize()?;
            let unit = Properties(&connection, &path);
            let state: String = unit.get("Unit", "LoadState").await?;
            if state == "not-found" {
                return Ok(None);
            }
            let commands: Vec<ExecStart> = unit.get("Service", "ExecStart").await?;
            let files: Vec<(String, bool)> = unit.get("Service", "EnvironmentFiles").await?;
            let drop_ins: Vec<String> = unit.get("Unit", "DropInPaths").await?;
            Ok(Some(ServiceUnit {
                fragment: unit.get::<String>("Unit", "FragmentPath").await?.into(),
                drop_ins: drop_ins.into_iter().map(PathBuf::from).collect(),
                needs_reload: unit.get("Unit", "NeedDaemonReload").await?,
                command: commands.into_iter().next().map_or_else(Vec::new, |command| command.1),
                environment: unit.get("Service", "Environment").await?,
                environment_files: files
                    .into_iter()
                    .map(|(path, optional)| (path.into(), optional))
                    .collect(),
            }))
        })
        .await
    }
}

/// Properties of a unit.
struct Properties<'a>(&'a Connection, &'a OwnedObjectPath);

// === impl Properties ===

impl Properties<'_> {
    async fn get<T>(&self, interface: &str, name: &str) -> zbus::Result<T>
    where
        T: for<'de> Deserialize<'de> + Type,
    {
        let which = (format!("{SERVICE}.{interface}"), name);
        let answer = self
            .0
            .call_method(Some(SERVICE), self.1, Some(PROPERTIES), "Get", &which)
            .await?;
        let body = answer.body();
        let value: DeserializeValue<'_, T> = body.deserialize()?;
        Ok(value.0)
    }
}

// === impl ServiceUnit ===

/// Values by name.
pub type Variables = BTreeMap<String, String>;

impl ServiceUnit {
    /// The variables that the service is started with. A later assignment overrides an earlier one, and files override
    /// `Environment=` (systemd.exec(5)). Also returns the files that were read.
    ///
    /// # Errors
    /// The file that cannot be read, unless it may be missing.
    pub fn variables(&self) -> Result<(Variables, Vec<PathBuf>), (PathBuf, io::Error)> {
        let assignments = self
            .environment
            .iter()
            .filter_map(|assignment| assignment.split_once('='));
        let mut variables: Variables = assignments
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut read = Vec::new();
        for (path, may_be_missing) in &self.environment_files {
            match environment_file::read(path) {
                Ok(assignments) => {
                    variables.extend(assignments);
                    read.push(path.clone());
                }
                Err(error) if *may_be_missing && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err((path.clone(), error)),
            }
        }
        Ok((variables, read))
    }

    /// The unit file and its drop-ins.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let drop_ins = self.drop_ins.iter().map(PathBuf::as_path);
        std::iter::once(self.fragment.as_path()).chain(drop_ins)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::node::systemd::tests::double::{Behavior, bus};

    #[tokio::test]
    async fn command_and_environment_of_a_service_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, calls) = bus(dir.path(), &[Behavior::Service]);
        let unit = systemd.service("pod-teardown.service").await.unwrap().unwrap();
        assert_eq!(
            unit,
            ServiceUnit {
                fragment: "/lib/systemd/system/its.service".into(),
                drop_ins: vec!["/etc/systemd/system/its.service.d/10.conf".into()],
                needs_reload: true,
                command: vec!["/usr/bin/its".to_owned(), "run".to_owned(), "--x=1".to_owned()],
                environment: vec!["A=1".to_owned()],
                environment_files: vec![("/etc/default/its".into(), true)],
            }
        );
        let changes = |call: &String| !matches!(&**call, "Hello" | "Subscribe" | "LoadUnit" | "Get");
        assert!(!calls.lock().unwrap().iter().any(changes), "{calls:?}");
    }

    #[tokio::test]
    async fn unknown_service_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let (systemd, _) = bus(dir.path(), &[Behavior::NotLoaded]);
        assert_eq!(systemd.service("pod-teardown.service").await, Ok(None));
    }

    #[test]
    fn files_override_the_environment_and_only_optional_ones_may_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("one"), "A=2\nB=3\n").unwrap();
        let unit = |files: &[(&str, bool)]| ServiceUnit {
            environment: vec!["A=1".to_owned(), "C=x=y".to_owned()],
            environment_files: files.iter().map(|(name, optional)| (path(name), *optional)).collect(),
            ..ServiceUnit::default()
        };
        let (variables, read) = unit(&[("none", true), ("one", false)]).variables().unwrap();
        let expected = [("A", "2"), ("B", "3"), ("C", "x=y")];
        assert_eq!(
            variables,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        );
        assert_eq!(read, [path("one")]);
        let (missing, _) = unit(&[("none", false)]).variables().unwrap_err();
        assert_eq!(missing, path("none"));
    }
}
