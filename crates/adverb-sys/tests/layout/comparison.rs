//! The C program that is generated from the table, and its expected output.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::{fs, process};

use adverb_sys::layout::{CDeclaration, Field, Item, Record};

use crate::c_types::{CTypes, c_name};
use crate::headers::{INCLUDES, cc};

/// A C program that is being generated, and its expected output.
#[derive(Default)]
pub(crate) struct Comparison {
    names: BTreeSet<String>,
    program: String,
    expected: Vec<(String, i128)>,
    /// The names that the headers lack, and that are marked as newer.
    pub(crate) newer: Vec<String>,
    /// The numbers of compared items.
    pub(crate) counts: Counts,
}

/// The numbers of compared items, by kind.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) structs: usize,
    pub(crate) fields: usize,
    pub(crate) constants: usize,
    pub(crate) opaque: usize,
    pub(crate) enumerations: usize,
    pub(crate) functions: usize,
}

impl Comparison {
    /// Creates a comparison with headers that contain these names.
    pub(crate) fn new(names: BTreeSet<String>) -> Self {
        Self { names, ..Self::default() }
    }

    /// Adds an expression in C and its value in Rust.
    pub(crate) fn expect(&mut self, label: impl Into<String>, expression: &str, value: impl TryInto<i128>) {
        let value = value.try_into().unwrap_or_else(|_| unreachable!());
        writeln!(self.program, "    print({expression} < 0, {expression});").unwrap();
        self.expected.push((label.into(), value));
    }

    /// Adds an entry of the table.
    pub(crate) fn add(&mut self, types: &CTypes, item: &Item) {
        match item {
            // The union is compared with the struct that contains it.
            Item::Record(record) if matches!(record.declaration, CDeclaration::AnonymousIn(_)) => {}
            Item::Record(record) => self.add_record(types, record),
            Item::Opaque { name } => {
                self.expect(*name, &format!("(struct {name} *)0 == NULL"), 1);
                self.counts.opaque += 1;
            }
            Item::Enumeration { name, size, signed } => {
                self.expect(format!("{name}: size"), &format!("sizeof(enum {name})"), *size as i128);
                self.expect(
                    format!("{name}: signed"),
                    &format!("((enum {name})-1 < 0)"),
                    i128::from(*signed),
                );
                self.counts.enumerations += 1;
            }
            Item::Constant { name, value, since } => {
                if self.has_constant(name, *since) {
                    self.expect(*name, name, *value);
                    self.counts.constants += 1;
                }
            }
            Item::Function { name, ty } => {
                let c = types.translate(ty);
                self.expect(
                    format!("{name}: signature as `{c}`"),
                    &format!("__builtin_types_compatible_p(__typeof__(&{name}), {c})"),
                    1,
                );
                self.counts.functions += 1;
            }
        }
    }

    fn add_record(&mut self, types: &CTypes, record: &Record) {
        let (name, c) = (record.name, c_name(record));
        // Fields that the headers lack are at the end, so the struct of the headers ends before them.
        let mut size = record.size;
        for field in record.fields {
            if !self.has_field(record, &c, field) {
                if !matches!(record.declaration, CDeclaration::Union | CDeclaration::TypeOf(_)) {
                    size = size.min(field.offset.next_multiple_of(record.align));
                }
                continue;
            }
            match types.anonymous_union(field.ty) {
                // The members of a union without a name are, for C, members of the struct.
                Some(union) => {
                    assert!(
                        matches!(union.declaration, CDeclaration::AnonymousIn(outer) if outer == name),
                        "{name}.{}",
                        field.name
                    );
                    for member in union.fields {
                        self.add_field(types, record, &c, field.offset + member.offset, member);
                    }
                }
                None => self.add_field(types, record, &c, field.offset, field),
            }
        }
        if !matches!(record.declaration, CDeclaration::StructGrowingAtStart) {
            self.expect(format!("{name}: size"), &format!("sizeof({c})"), size as i128);
        }
        self.expect(format!("{name}: alignment"), &format!("_Alignof({c})"), record.align as i128);
        self.counts.structs += 1;
    }

    fn add_field(&mut self, types: &CTypes, record: &Record, c: &str, offset: usize, field: &Field) {
        let name = field.name.trim_start_matches("r#");
        let label = format!("{}.{name}", record.name);
        if let CDeclaration::StructGrowingAtStart = record.declaration {
            let c_offset = format!("sizeof({c}) - offsetof({c}, {name})");
            self.expect(format!("{label}: offset from the end"), &c_offset, (record.size - offset) as i128);
        } else {
            self.expect(format!("{label}: offset"), &format!("offsetof({c}, {name})"), offset as i128);
        }
        self.expect(format!("{label}: size"), &format!("sizeof((({c} *)0)->{name})"), field.size as i128);
        let ty = types.translate(field.ty);
        self.expect(
            format!("{label}: type as `{ty}`"),
            &format!("__builtin_types_compatible_p(__typeof__((({c} *)0)->{name}), {ty})"),
            1,
        );
        self.counts.fields += 1;
    }

    /// Whether the headers define a constant. Only constants that are marked as newer may be missing; the compiler
    /// reports others.
    fn has_constant(&mut self, name: &str, since: Option<&str>) -> bool {
        let has = since.is_none() || self.names.contains(name);
        if !has {
            self.newer.push(name.to_owned());
        }
        has
    }

    /// Whether the headers define a field. The name alone is not sufficient, because other structs may have a field of
    /// that name.
    fn has_field(&mut self, record: &Record, c: &str, field: &Field) -> bool {
        let probe = format!("{INCLUDES}size_t offset = offsetof({c}, {});\n", field.name);
        let has = field.since.is_none() || cc(&["-x", "c", "-fsyntax-only", "-"], &probe).0;
        if !has {
            self.newer.push(format!("{}.{}", record.name, field.name));
        }
        has
    }

    /// Compiles and runs the program, and returns the differences.
    pub(crate) fn run(&self) -> Vec<String> {
        let source = format!(
            "{INCLUDES}\
             static void print(int negative, unsigned long long value)\n\
             {{\n    printf(negative ? \"%lld\\n\" : \"%llu\\n\", value);\n}}\n\
             int main(void)\n{{\n{}    return 0;\n}}\n",
            self.program
        );
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let program = directory.join(format!("layout-{}-{}", process::id(), self.expected.len()));
        let (ok, _, errors) = cc(&["-x", "c", "-w", "-o", program.to_str().unwrap(), "-"], &source);
        assert!(ok, "the headers lack something that isn't marked as newer:\n{errors}");
        let output = Command::new(&program).output().unwrap();
        fs::remove_file(&program).unwrap();
        assert!(output.status.success());

        let printed = String::from_utf8(output.stdout).unwrap();
        let values: Vec<i128> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(values.len(), self.expected.len());
        let pairs = self.expected.iter().zip(values);
        pairs
            .filter(|((_, rust), c)| rust != c)
            .map(|((label, rust), c)| format!("{label}: {c} in C, {rust} in Rust"))
            .collect()
    }
}
