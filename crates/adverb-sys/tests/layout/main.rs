//! Compares all declarations of the crate with the installed C headers.
//!
//! The table that the crate's macros build is translated to a C program. The program prints the sizes, alignments,
//! offsets and values of all entries, and whether each type and signature, translated to C, equals that of the header.
//! Without headers the test is skipped, unless ADVERB_REQUIRE_HEADERS is set to 1.
//!
//! To compare with other headers than the installed ones, set CPATH to their directory.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use adverb_sys::layout::{CDeclaration, Field, Item, Record, items};

use crate::c_types::CTypes;
use crate::comparison::Comparison;
use crate::headers::names_in_headers;

mod c_types;
mod comparison;
mod headers;

#[test]
fn all_declarations_match_the_headers() {
    let Some(names) = names_in_headers() else {
        return;
    };
    let types = CTypes::new();
    let mut comparison = Comparison::new(names);
    for item in items() {
        comparison.add(&types, item);
    }
    let address = adverb_sys::__VERBS_ABI_IS_EXTENDED.addr();
    comparison.expect("__VERBS_ABI_IS_EXTENDED", "(uintptr_t)__VERBS_ABI_IS_EXTENDED", address);

    let differences = comparison.run();
    let counts = &comparison.counts;
    println!(
        "{} structs, {} fields, {} constants compared; also {} opaque types, {} enumerations, {} functions",
        counts.structs, counts.fields, counts.constants, counts.opaque, counts.enumerations, counts.functions
    );
    if !comparison.newer.is_empty() {
        println!("newer than these headers, not compared: {}", comparison.newer.join(", "));
    }
    assert!(differences.is_empty(), "the headers differ:\n{}", differences.join("\n"));
    assert!(counts.structs > 60 && counts.fields > 500 && counts.constants > 300, "the table has shrunk");
}

/// Declarations outside of the macros are not in the table, so they would not be compared.
#[test]
fn nothing_is_declared_outside_the_table() {
    let mut sources = Vec::new();
    find_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    assert!(sources.len() > 20);
    for path in sources {
        if path.ends_with("src/table.rs") {
            continue;
        }
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let line = line.trim_start();
            let is_declaration = line.starts_with("#[repr(C")
                || line.starts_with("extern \"C\"")
                || line.starts_with("unsafe extern \"C\" {")
                // `__VERBS_ABI_IS_EXTENDED` is a pointer, so it is not in the table. The test above compares it.
                || (line.starts_with("pub const ")
                    && !line.starts_with("pub const fn ")
                    && !line.ends_with('{')
                    && !line.starts_with("pub const __VERBS_ABI_IS_EXTENDED"));
            assert!(!is_declaration, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// Each name must occur once: if one declaration is compared twice, another may not be compared at all.
#[test]
fn no_name_is_declared_twice() {
    let mut seen = BTreeSet::new();
    for item in items() {
        let name = match item {
            Item::Record(record) => record.name,
            Item::Opaque { name }
            | Item::Enumeration { name, .. }
            | Item::Constant { name, .. }
            | Item::Function { name, .. } => name,
        };
        assert!(seen.insert(name), "{name}");
    }
}

/// The comparison must detect wrong declarations.
#[test]
fn a_wrong_declaration_is_detected() {
    let Some(names) = names_in_headers() else {
        return;
    };
    let types = CTypes::new();
    let wrong = [
        // One field has the wrong type, one has too low an offset, and the struct is too small.
        Item::Record(Record {
            name: "ibv_sge",
            declaration: CDeclaration::Struct,
            size: 12,
            align: 8,
            fields: &[
                Field { name: "addr", ty: "u64", offset: 0, size: 8, since: None },
                Field { name: "length", ty: "c_int", offset: 8, size: 4, since: None },
                Field { name: "lkey", ty: "u32", offset: 8, size: 4, since: None },
            ],
        }),
        Item::Constant { name: "IBV_QPT_UD", value: 3, since: None },
        Item::Enumeration { name: "ibv_node_type", size: 4, signed: false },
        Item::Function { name: "ibv_dealloc_pd", ty: "unsafe extern \"C\" fn(*mut ibv_mr) -> c_int" },
        Item::Function { name: "ibv_query_gid", ty: "unsafe extern \"C\" fn(*mut ibv_context, u8) -> c_int" },
        // This declaration is right, so it is not reported.
        Item::Constant { name: "IBV_QPT_RC", value: 2, since: None },
        // This declaration is newer than any header, so it is not compared.
        Item::Constant { name: "IBV_QPT_TELEPATHY", value: 2, since: Some("999") },
    ];
    let mut comparison = Comparison::new(names);
    for item in &wrong {
        comparison.add(&types, item);
    }
    assert_eq!(
        comparison.run(),
        [
            "ibv_sge.length: type as `int`: 0 in C, 1 in Rust",
            "ibv_sge.lkey: offset: 12 in C, 8 in Rust",
            "ibv_sge: size: 16 in C, 12 in Rust",
            "IBV_QPT_UD: 4 in C, 3 in Rust",
            "ibv_node_type: signed: 1 in C, 0 in Rust",
            "ibv_dealloc_pd: signature as `int (*)(struct ibv_mr *)`: 0 in C, 1 in Rust",
            "ibv_query_gid: signature as `int (*)(struct ibv_context *, uint8_t)`: 0 in C, 1 in Rust",
        ]
    );
    assert_eq!(comparison.newer, ["IBV_QPT_TELEPATHY"]);
}

fn find_sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_sources(&path, found);
        } else {
            found.push(path);
        }
    }
}
