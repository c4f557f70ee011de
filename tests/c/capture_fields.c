// SPDX-License-Identifier: Apache-2.0
// Prints pmp/capture/fields.h as JSON for tests/unit/test_captureformat.py: records in their order,
// and of each field [record, name, type, always or optional].
#include <stdio.h>

#include "capture/fields.h"

#define PRINT_RECORD(record) printf("%s\"%s\"", comma++ ? ", " : "", #record);
#define PRINT_FIELD(record, field, type, presence)                                                 \
	printf("%s\n[\"%s\", \"%s\", \"%s\", \"%s\"]", comma++ ? "," : "", #record, #field, #type, \
	       #presence);

int main(void)
{
	int comma = 0;

	printf("{\"records\": [");
	STALL_CAPTURE_RECORDS(PRINT_RECORD)
	printf("],\n\"fields\": [");
	comma = 0;
	STALL_CAPTURE_FIELDS(PRINT_FIELD)
	printf("]}\n");
	return 0;
}
