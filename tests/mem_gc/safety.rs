//! Of a living owner nothing is deleted, whatever cannot be seen (`sight`), whatever a reference says (`coordinates`), and
//! whatever stands behind the server's address (`server`); and long lists and masses of kinds (`crowds`) keep nothing from going.

mod coordinates;
mod crowds;
mod server;
mod sight;
