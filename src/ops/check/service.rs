//! `check --service`: reads how systemd has configured the agent's service.

use std::{collections::BTreeMap, path::Path};

use super::{
    item::Item,
    row::{Row, Verdict},
};
use crate::node::systemd::{Systemd, environment_file, service::ServiceUnit};

/// The unit of the agent.
const UNIT: &str = "pod-teardown.service";

/// Settings of the service, and the row that says where they were read.
#[derive(Debug)]
pub struct ServiceConfiguration {
    /// Arguments of `ExecStart=`, the program first.
    pub command: Vec<String>,
    /// Variables of the service.
    pub variables: BTreeMap<String, String>,
    /// What was read.
    pub row: Row,
}

/// Reads the configuration of the service. If systemd does not answer, only the environment file is read.
///
/// # Errors
/// The row of the failure, if there is no such service or its environment cannot be read.
pub async fn read_service(systemd: &Systemd) -> Result<ServiceConfiguration, Row> {
    match systemd.service(UNIT).await {
        Ok(Some(unit)) => with_unit(unit),
        Ok(None) => Err(Row::new(
            Item::SERVICE_UNIT,
            Verdict::Configuration,
            format!("systemd does not know {UNIT}"),
            "run check without --service, and with the agent's own flags; or install the package, which has the unit",
        )),
        Err(why) => without_systemd(&why, Path::new(environment_file::OF_SERVICE)),
    }
}

fn with_unit(unit: ServiceUnit) -> Result<ServiceConfiguration, Row> {
    let (variables, environment_files) = unit.variables().map_err(|(path, error)| {
        Row::new(
            Item::SERVICE_UNIT,
            Verdict::Configuration,
            format!("cannot read the environment file {}: {error}", path.display()),
            "run check as root, and correct EnvironmentFile= in `systemctl cat pod-teardown`",
        )
    })?;
    let files = unit.files().chain(environment_files.iter().map(|path| path.as_path()));
    let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
    let seen = format!("{UNIT} is configured by {}", files.join(", "));
    let row = if unit.needs_reload {
        let seen = format!("{seen}; a unit file has changed since systemd has loaded it");
        let remedy = "run `systemctl daemon-reload` and `systemctl restart pod-teardown`, and then check again";
        Row::new(Item::SERVICE_UNIT, Verdict::Warning, seen, remedy)
    } else {
        Row::ok(Item::SERVICE_UNIT, seen)
    };
    Ok(ServiceConfiguration {
        command: unit.command,
        variables,
        row,
    })
}

fn without_systemd(why: &str, file: &Path) -> Result<ServiceConfiguration, Row> {
    let path = file.display();
    let variables = environment_file::read(file).map_err(|error| {
        Row::new(
            Item::SERVICE_UNIT,
            Verdict::Configuration,
            format!("systemd does not answer on D-Bus ({why}), and {path} cannot be read: {error}"),
            "run check as root on the host, where `systemctl status pod-teardown` works",
        )
    })?;
    let row = Row::new(
        Item::SERVICE_UNIT,
        Verdict::Warning,
        format!("systemd does not answer on D-Bus ({why}); only {path} was read"),
        "run check as root on the host: drop-ins and ExecStart= of the unit are not considered",
    );
    Ok(ServiceConfiguration {
        command: Vec::new(),
        variables: variables.into_iter().collect(),
        row,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn row_names_all_files_and_warns_of_a_missing_reload() {
        let dir = tempfile::tempdir().unwrap();
        let environment = dir.path().join("default");
        fs::write(&environment, "POD_TEARDOWN_MODE=never\n").unwrap();
        for (needs_reload, verdict) in [(false, Verdict::Ok), (true, Verdict::Warning)] {
            let unit = ServiceUnit {
                fragment: "/lib/systemd/system/pod-teardown.service".into(),
                drop_ins: vec!["/etc/systemd/system/pod-teardown.service.d/1.conf".into()],
                needs_reload,
                environment_files: vec![(environment.clone(), true)],
                ..ServiceUnit::default()
            };
            let service = with_unit(unit).unwrap();
            service.row.assert_helps();
            assert_eq!(service.row.verdict, verdict);
            for file in [
                "/lib/systemd/system/pod-teardown.service",
                "1.conf",
                environment.to_str().unwrap(),
            ] {
                assert!(service.row.seen.contains(file), "{file}: {:?}", service.row);
            }
            assert_eq!(service.variables["POD_TEARDOWN_MODE"], "never");
        }
    }

    #[test]
    fn missing_environment_file_is_a_configuration_error() {
        let unit = ServiceUnit {
            environment_files: vec![("/no/such/file".into(), false)],
            ..ServiceUnit::default()
        };
        let row = with_unit(unit).unwrap_err();
        row.assert_helps();
        assert_eq!(row.verdict, Verdict::Configuration);
    }

    #[test]
    fn without_systemd_only_the_environment_file_is_read_and_the_row_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("default");
        let row = without_systemd("no bus", &file).unwrap_err();
        row.assert_helps();
        assert_eq!(row.verdict, Verdict::Configuration);
        fs::write(&file, "A=1\n").unwrap();
        let service = without_systemd("no bus", &file).unwrap();
        service.row.assert_helps();
        assert_eq!((service.row.verdict, &*service.variables["A"]), (Verdict::Warning, "1"));
    }
}
