use std::fs;

use proptest::prelude::*;

use super::*;

const POD_COPY: &str = r#"{"attachmentID":"csi-ab","driverName":"csi.example.com","nodeName":"node-1","specVolID":"pv-1","volumeHandle":"vol/../0123","volumeLifecycleMode":"Persistent","seLinuxMountContext":"x"}"#;

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn pod_file_has_all_fields_and_a_global_one_driver_and_handle() {
    let all = VolumeData {
        driver: text("csi.example.com"),
        handle: text("vol/../0123"),
        attachment_id: text("csi-ab"),
        node: text("node-1"),
        spec_name: text("pv-1"),
        lifecycle: Lifecycle::Persistent,
    };
    assert_eq!(parse(POD_COPY.as_bytes()), Ok(all));
    let global = parse(br#"{"driverName":"csi.example.com","volumeHandle":"v"}"#).unwrap();
    assert_eq!(
        (global.driver, global.handle, global.node),
        (text("csi.example.com"), text("v"), None)
    );
    let inline = parse(br#"{"driverName":"d","volumeHandle":"","volumeLifecycleMode":"Ephemeral"}"#).unwrap();
    assert_eq!((inline.lifecycle, inline.handle), (Lifecycle::Ephemeral, None));
}

#[test]
fn unknown_keys_are_ignored() {
    let newer = POD_COPY.replace('{', r#"{"newKey":{"a":[1]},"#);
    assert_eq!(parse(newer.as_bytes()), parse(POD_COPY.as_bytes()));
}

#[test]
fn truncated_files_after_a_crash_are_distinguished() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Dir::open(&temp.path().canonicalize().unwrap()).unwrap().unwrap();
    let path = temp.path().join(FILE);
    assert_eq!(read(&dir), Ok(VolumeDataFile::Missing));
    let torn = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        match read(&dir) {
            Ok(VolumeDataFile::Invalid(torn)) => torn,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(torn(b""), InvalidVolumeData::Empty);
    assert_eq!(torn(b"\n"), InvalidVolumeData::Empty);
    assert_eq!(torn(&[0; 4096]), InvalidVolumeData::Empty);
    for cut in 1..POD_COPY.len() {
        assert_eq!(torn(&POD_COPY.as_bytes()[..cut]), InvalidVolumeData::CutOff, "{cut}");
    }
    for garbage in [
        "x",
        "[]x",
        "7",
        "null",
        "\"x\"",
        "{\"driverName\":7}",
        "{\"volumeHandle\":{}}",
        "{}{}",
    ] {
        assert!(
            matches!(torn(garbage.as_bytes()), InvalidVolumeData::Garbage(_)),
            "{garbage}"
        );
    }
    assert!(matches!(
        torn(b"{\"driverName\":\"\xff\"}"),
        InvalidVolumeData::Garbage(_)
    ));
    assert_eq!(torn(&vec![b' '; 1 << 20]), InvalidVolumeData::TooLarge);
    fs::write(&path, POD_COPY).unwrap();
    assert!(matches!(read(&dir), Ok(VolumeDataFile::Read(_))));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(
        read(&dir),
        Ok(VolumeDataFile::Invalid(InvalidVolumeData::NotRegularFile))
    );
}

#[test]
fn driver_name_with_a_path_is_refused() {
    for name in ["..", ".", "a/b", "../../etc", "a\0b", "a b", "ü", &"x".repeat(64)] {
        let json = serde_json::json!({"driverName": name, "volumeHandle": "v"}).to_string();
        assert_eq!(
            parse(json.as_bytes()),
            Err(InvalidVolumeData::BadDriver(name.to_owned()))
        );
        assert_eq!(staging_dir(name, "v"), None);
    }
}

// The digests were computed with coreutils' sha256sum.
#[test]
fn names_equal_the_kubelets() {
    let staged =
        "plugins/kubernetes.io/csi/csi.example.com/f1dcc41f8f47bcb49d9e1cd26bd3aef8ebdac1e4cbe319cc4b4ac26bffe8f1e9";
    assert_eq!(staging_dir("csi.example.com", "vol-0123").unwrap(), Path::new(staged));
    assert_eq!(
        ephemeral_handle("5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01", "scratch"),
        "csi-cc6457b2c620721824e0c1a1ef4163ef2d333313d1e7286a0a72031ae2e192e9"
    );
    assert_eq!(
        attachment_id("vol-0123", "csi.example.com", "node-1"),
        "csi-3856322e568ece861d48d1f12bd04f9e012f52b6bd722f4d139464ba718fd74d"
    );
    assert_eq!(
        unique_name("csi.example.com", "vol-0123"),
        "kubernetes.io/csi/csi.example.com^vol-0123"
    );
}

proptest! {
    #[test]
    fn no_content_panics_and_no_driver_name_is_a_path(content in proptest::collection::vec(any::<u8>(), 0..64), name in ".*") {
        let _torn = parse(&content);
        let json = serde_json::json!({"driverName": name, "volumeHandle": "v"}).to_string();
        if let Ok(VolumeData { driver: Some(driver), .. }) = parse(json.as_bytes()) {
            prop_assert_eq!(staging_dir(&driver, "v").unwrap().components().count(), 5);
        }
    }
}
