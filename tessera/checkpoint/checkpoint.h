// Includes everything that a program needs to write, find and read checkpoints. docs/checkpoint.md defines the format.
#pragma once
#include "tessera/checkpoint/collective_files.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/writer.h"
